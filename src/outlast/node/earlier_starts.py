"""The time that earlier starts of a job computed, and how often the cluster interrupted them.

The training chooses its save interval from this. The controller counts attempts by the same rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Collection, Iterable, Iterator

from outlast.node import jsonl
from outlast.node.failure_streak import TRAINING_FAILURES
from outlast.node.protocol import EXIT_CONTINUE, Outcome, Phase, parse_outcome

if TYPE_CHECKING:  # `status` imports this module, and no orders
    from outlast.node.order import SaveSettings

#: Outcomes that are planned, or caused by the training or its user.
_PLANNED = (*TRAINING_FAILURES, Outcome.FINISHED, Outcome.CONTINUE, Outcome.OVER_TIME, Outcome.CANCELLED)
#: The bytes to read at the beginning and at the end of an event log.
_PART_BYTES = 65536


def was_interruption(outcome: Outcome | None, code: int | None, phases: Collection[Phase]) -> bool:
    """Return True if the cluster interrupted the computation; `outcome` is None if no end was logged.

    It is no interruption if the training saved and left when it was stopped, or if it had finished.
    """
    if Phase.COMPUTE not in phases or Phase.VALIDATE in phases or code == EXIT_CONTINUE:
        return False
    return outcome not in _PLANNED


def add_earlier_starts(saving: SaveSettings, logs: Iterable[str]) -> SaveSettings:
    """Return `saving` with the times and interruptions in the event logs of earlier starts added.

    Logs that cannot be read are skipped.
    """
    for path in logs:
        phases: list[tuple[Phase, float]] = []
        end: dict[str, Any] = {}
        last = 0.0
        for line in _lines(path):
            mono = _seconds(line.get("mono"))
            if mono is None:
                continue
            last = max(last, mono)
            phase = _phase(line) if line.get("event") == "phase" else None
            if phase is not None:
                phases.append((phase, mono))
            elif line.get("event") == "end":
                end = line
        begins = [mono for phase, mono in phases if phase is Phase.COMPUTE]
        if not begins:
            continue
        ends = [mono for _, mono in phases if mono > begins[0]] + [last]
        known = {phase for phase, _ in phases}
        saving = replace(
            saving,
            observed=saving.observed + max(0.0, min(ends) - begins[0]),
            interruptions=saving.interruptions
            + was_interruption(parse_outcome(end.get("outcome")), end.get("code"), known),
        )
    return saving


def _lines(path: str) -> Iterator[dict[str, Any]]:
    log = jsonl.read(path, _PART_BYTES, _PART_BYTES)
    return log.lines() if log is not None else iter(())


def _seconds(value: object) -> float | None:
    number = float(value) if isinstance(value, (int, float)) else math.nan
    return number if math.isfinite(number) else None


def _phase(line: dict[str, Any]) -> Phase | None:
    try:
        return Phase(line.get("phase"))
    except ValueError:
        return None  # written by another version
