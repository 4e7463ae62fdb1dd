"""Admission of new attempts: limits on jobs, outages of data sources, hosts to avoid.

An attempt whose data cannot be fetched holds a slot for as long as its patience lasts. So once a run was
turned back by an outage, the runs that need the same data wait for one of them, the scout, to get through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from outlast.domain.decision import Decision
from outlast.domain.model import Attempt, Run

#: A scout that has been queued for this many seconds no longer holds the others back.
SCOUT_TIMEOUT = 3600.0

#: How much of something is in use, and the limit; None: no limit.
Usage = tuple[int, int | None]


def admit(
    starts: Sequence[Decision], runs: Usage, jobs: Usage, recent_jobs: Usage, jobs_per_start: int = 1
) -> Sequence[Decision]:
    """Return the starts that fit the limits on runs, on jobs, and on jobs submitted in the last minute."""
    rooms = [
        (limit - used) // size
        for (used, limit), size in ((runs, 1), (jobs, jobs_per_start), (recent_jobs, jobs_per_start))
        if limit is not None
    ]
    return starts[: max(0, min(rooms))] if rooms else starts


def choose_avoided(failed: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts in `failed` (oldest first) to avoid, but never all of `hosts`.

    If all have failed, the one that failed longest ago is tried again.
    """
    if not hosts:
        return tuple(failed)
    failed = [host for host in failed if host in hosts]
    return tuple(failed[max(0, len(failed) - (len(hosts) - 1)) :]) if len(hosts) > 1 else ()


class SourceOutage(Protocol):
    """The records that `hold_back` needs in addition to the runs."""

    def current(self, run: Run) -> Attempt | None:
        """Return the current attempt of a run."""

    def last_computed(self, spec: int) -> float:
        """Return when an attempt of this spec that reached its training last ended; -inf if none did."""


def hold_back(
    starts: Sequence[Decision],
    runs: Iterable[Run],
    known: SourceOutage,
    has_data: Callable[[Attempt], bool],
    now: float,
) -> Sequence[Decision]:
    """Return the starts that need not wait for a scout.

    `runs` are those that are not over; `has_data` returns True if a current attempt has its data.
    """
    by_spec: dict[int, list[Run]] = {}
    for run in runs:
        by_spec.setdefault(run.spec, []).append(run)
    out = {spec: group for spec, group in by_spec.items() if _is_out(spec, group, known)}
    if not out:
        return starts
    room = {spec: _room(group, known, has_data, now) for spec, group in out.items()}
    by_name = {run.name: run for group in out.values() for run in group}
    waiting = [by_name[start.run] for start in starts if start.run in by_name]
    held_back = set()
    # The run that was turned back longest ago goes first: so the runs share the cost of scouting.
    for run in sorted(waiting, key=_turned_back_at):
        room[run.spec] -= 1
        if room[run.spec] < 0:
            held_back.add(run.name)
    return [start for start in starts if start.run not in held_back]


def _is_out(spec: int, runs: Sequence[Run], known: SourceOutage) -> bool:
    turned_back = max(map(_turned_back_at, runs))
    return turned_back > -math.inf and turned_back > known.last_computed(spec)


def _room(runs: Sequence[Run], known: SourceOutage, has_data: Callable[[Attempt], bool], now: float) -> float:
    """Return how many more of these runs may start now."""
    turned_back = max(map(_turned_back_at, runs))
    attempts = [attempt for run in runs if (attempt := known.current(run)) is not None]
    if any(has_data(attempt) for attempt in attempts if (attempt.started or -math.inf) >= turned_back):
        return math.inf
    return 1.0 - sum(0 <= now - attempt.intended < SCOUT_TIMEOUT for attempt in attempts)


def _turned_back_at(run: Run) -> float:
    return run.last.at if run.last is not None and run.last.turned_back else -math.inf
