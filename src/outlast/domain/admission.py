"""When a source of data is out, one attempt finds out for all whether it is back.

Each attempt that comes for data which cannot be had holds a slot for as long as its patience lasts. So once a
run was turned back, the runs that want the same data wait for a scout, until one got as far as its training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from outlast.domain.decision import Decision
from outlast.domain.model import Attempt, Run

#: A scout that has waited in the queue for so long keeps nobody any longer.
SCOUTS_FOR = 3600.0


class SourceOutage(Protocol):
    """What the decision needs to know beside the runs."""

    def current(self, run: Run) -> Attempt | None: ...

    def last_computed(self, spec: int) -> float:
        """When an attempt of such a run ended that had got as far as its training; -inf: none has."""


def hold_back(
    starts: Sequence[Decision],
    runs: Iterable[Run],
    known: SourceOutage,
    has_data: Callable[[Attempt], bool],
    now: float,
) -> Sequence[Decision]:
    """Of the starts those that are not to wait for a scout.

    `runs` are those that are not over; `has_data`: whether an attempt under way got as far as its training.
    """
    alike: dict[int, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.spec, []).append(run)
    out = {spec: group for spec, group in alike.items() if _is_out(spec, group, known)}
    if not out:
        return starts
    room = {spec: _room(group, known, has_data, now) for spec, group in out.items()}
    by_name = {run.name: run for group in out.values() for run in group}
    waiting = [by_name[start.run] for start in starts if start.run in by_name]
    kept = set()
    # Whoever was turned back longest ago goes first: so all of them share what it costs.
    for run in sorted(waiting, key=_turned_back_at):
        room[run.spec] -= 1
        if room[run.spec] < 0:
            kept.add(run.name)
    return [start for start in starts if start.run not in kept]


def _is_out(spec: int, runs: Sequence[Run], known: SourceOutage) -> bool:
    turned_back = max(map(_turned_back_at, runs))
    return turned_back > -math.inf and turned_back > known.last_computed(spec)


def _room(runs: Sequence[Run], known: SourceOutage, has_data: Callable[[Attempt], bool], now: float) -> float:
    """How many more of these may be started now."""
    turned_back = max(map(_turned_back_at, runs))
    attempts = [attempt for run in runs if (attempt := known.current(run)) is not None]
    if any(has_data(attempt) for attempt in attempts if (attempt.started or -math.inf) >= turned_back):
        return math.inf
    return 1.0 - sum(0 <= now - attempt.intended < SCOUTS_FOR for attempt in attempts)


def _turned_back_at(run: Run) -> float:
    return run.last.at if run.last is not None and run.last.turned_back else -math.inf
