"""What a node program and its training logged of an attempt, read once the attempt is over (or silent).

Event logs come from another machine and may be cut anywhere by a kill or a full disk: a line that cannot
be read is passed over, a missing file is an empty one, and sizes are bounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outlast.model import Outcome, Phase
from outlast.observation import Report, Save

#: An event log beyond this is read up to here; ours are a few KiB.
MOST_BYTES = 32 * 2**20
#: The saves that the journal keeps of an attempt; more are never left to resume from.
MOST_SAVES = 20


def read_report(events: Path, progress: Path) -> Report | None:
    """None where the node has not been heard of at all."""
    try:
        heard = events.stat().st_mtime
    except FileNotFoundError:
        return None
    facts: dict[str, Any] = {"heard": heard}
    begins: list[tuple[Phase, float]] = []
    changes: list[float] = []
    told_by = None
    last = 0.0
    for line in _lines(events):
        mono = _finite(line.get("mono"))
        if mono is None:
            continue
        last = max(last, mono)
        match line.get("event"):
            case "claimed":
                facts.update(claimed=_number(line.get("at")), host=str(line.get("host", "")))
            case "phase":
                phase = _phase(line.get("phase"))
                if phase:
                    begins.append((phase, mono))
            case "changed":
                changes.append(mono)
            case "stop":
                told_by = line.get("why")
            case "end":
                facts.update(_ending(line))
    if facts.get("outcome") is Outcome.CONTINUE and told_by == "signal":
        # It left because the cluster asked, not at its limit: no fault of its own if nothing new was saved.
        facts["outcome"] = Outcome.EVICTED
    compute_began = next((mono for phase, mono in begins if phase is Phase.COMPUTE), last)
    told, training = _training(progress, compute_began)
    if begins and begins[-1][0] is Phase.COMPUTE:
        # The training was seen at work after the node program's last line.
        last = max(last, told)
    # A log may be cut before its first phase: then there is an end and no beginning.
    ends = [mono for _, mono in begins[1:]] + [last]
    facts["spans"] = tuple(
        (phase, max(0.0, end - mono)) for (phase, mono), end in zip(begins, ends, strict=False)
    )
    facts["changed"] = bool(changes) or facts.get("changed", False)
    facts.update(training)
    if not facts.get("saves"):
        facts["saves"] = tuple(Save(max(0.0, mono - compute_began), None) for mono in changes[-MOST_SAVES:])
    return Report(**facts)


def last_progress(progress: Path) -> Mapping[str, Any] | None:
    """The newest thing a training said of its progress, from the last few KiB of its file."""
    newest: Mapping[str, Any] | None = None
    for line in _lines(progress, tail=8192):
        if line.get("event") == "progress":
            newest = line
    return newest


def _training(progress: Path, compute_began: float) -> tuple[float, dict[str, Any]]:
    """When the training last told anything, and what follows from all it told."""
    facts: dict[str, Any] = {"loaded": False, "saving": 0.0}
    told = 0.0
    saves: list[Save] = []
    notes: list[str] = []
    for line in _lines(progress):
        step = line.get("step") if isinstance(line.get("step"), int) else None
        told = max(told, _number(line.get("mono")))
        match line.get("event"):
            case "loaded":
                facts.update(loaded=True, resumed=step)
            case "saved":
                saves.append(Save(max(0.0, _number(line.get("mono")) - compute_began), step))
                facts["saving"] += max(0.0, _number(line.get("seconds")))
            case "aside":
                notes.append("checkpoint %s was put aside: %s" % (line.get("name"), line.get("why")))
            case "save-failed":
                notes.append("saving step %s failed: %s" % (step, line.get("why")))
    facts.update(saves=tuple(saves[-MOST_SAVES:]), notes=tuple(notes[-5:]))
    return told, facts


def _ending(line: Mapping[str, Any]) -> dict[str, Any]:
    try:
        outcome = Outcome(line.get("outcome"))
    except ValueError:
        return {}
    tail = str(line.get("tail") or "").splitlines()
    delivered = line.get("delivered")
    return {
        "outcome": outcome,
        "detail": str(line.get("detail", ""))[:2000].rstrip("."),
        "code": line.get("code") if isinstance(line.get("code"), int) else None,
        "signal": line.get("signal") if isinstance(line.get("signal"), int) else None,
        "signature": str(line["signature"])[:200] if line.get("signature") else None,
        "tail": tuple(text[:500] for text in tail[-20:]),
        "changed": bool(line.get("progressed")),
        "delivered": delivered if isinstance(delivered, dict) else None,
    }


def _phase(value: object) -> Phase | None:
    try:
        return Phase(value)
    except ValueError:
        return None


def _number(value: object) -> float:
    return _finite(value) or 0.0


def _finite(value: object) -> float | None:
    """JSON can hold numbers that no clock shows."""
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _lines(path: Path, tail: int | None = None) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open("rb") as file:
            if tail is not None:
                size = file.seek(0, 2)
                file.seek(max(0, size - tail))
                raw = file.read(tail)
            else:
                raw = file.read(MOST_BYTES)
    except FileNotFoundError:
        return
    for text in raw.split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line
