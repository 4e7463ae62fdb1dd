"""The time of the next save: often enough that an interruption costs little, and always before the deadline.

Young and Daly: with C the cost of a save and M the mean time between interruptions, the least time is lost
with saves about √(2CM) apart. Under a wall-time limit that is not enough: an interval longer than the job is
never reached. So the time until the end is divided into equal parts no longer than that interval, and the
last save begins while there is time for one as slow as the slowest so far.

Nothing here reads the clock or a file; the time comes from `Deadline`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Callable, Mapping

from outlast.training import env
from outlast.training.deadline import Deadline, Pace

#: Assume one interruption in this many seconds before any was seen. If the guess is wrong by a factor of
#: four, intervals are wrong by a factor of two, which adds a quarter to the cost of saving and lost work
#: together.
PRIOR_INTERVAL = 24 * 3600.0
#: Share of the background write time that counts as cost: it takes memory, cores and bandwidth from training.
BACKGROUND_SHARE = 0.1
#: Seconds until the first save, or this fraction of a short job. The first save shows what saving costs and
#: that it works, before much depends on it.
FIRST_SAVE_SECONDS = 60.0
FIRST_SAVE_FRACTION = 0.1
#: Number of saves over which the cost is averaged, because the speed of file systems varies.
AVERAGED_SAVES = 5
#: Minimum seconds between two planned saves.
SHORTEST_GAP = 0.001


@dataclass(frozen=True)
class SavePlan:
    """The user's limits and the history of earlier attempts of the run; all times in seconds."""

    #: Fixed time between two saves; None: chosen here, between `shortest` and `longest`.
    every: float | None = None
    shortest: float = env.DEFAULT_SHORTEST
    longest: float = env.DEFAULT_LONGEST
    #: Seconds that the training has run, and how often the cluster interrupted it.
    observed: float = 0.0
    interruptions: int = 0
    #: Mean seconds that a save blocked the loop, and seconds the slowest took to be durable; None if unknown.
    blocked: float | None = None
    durable: float | None = None


def read_plan(environment: Mapping[str, str], number: Callable[[str], float | None]) -> SavePlan:
    """Return the plan that the environment sets.

    `number` returns a variable's value as a number, or None if it has none.
    """

    def at_least_zero(name: str, otherwise: float = 0.0) -> float:
        value = number(name)
        return otherwise if value is None else max(0.0, value)

    every = None if environment.get(env.SAVE_EVERY) == env.AUTO else number(env.SAVE_EVERY)
    blocked, durable = number(env.SAVE_BLOCKED), number(env.SAVE_DURABLE)
    return SavePlan(
        every=None if every is None else max(0.0, every),
        shortest=at_least_zero(env.SAVE_SHORTEST, env.DEFAULT_SHORTEST),
        longest=at_least_zero(env.SAVE_LONGEST, env.DEFAULT_LONGEST),
        observed=at_least_zero(env.OBSERVED),
        interruptions=int(at_least_zero(env.INTERRUPTIONS)),
        blocked=blocked if durable is not None else None,
        durable=durable if blocked is not None else None,
    )


def daly(cost: float, between: float) -> float:
    """Return the seconds of work between two saves that lose the least time.

    `cost` is the cost of a save and `between` the mean time between interruptions, in seconds.
    """
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


class SaveInterval:
    """Decides when a save is due.

    The loop calls `is_due` in each step and `note_copied` when it has copied a state. `note_saved` and
    `note_failed` report the result later and may be called from any thread; the loop picks it up at its next
    call.
    """

    def __init__(self, deadline: Deadline, plan: SavePlan = SavePlan()) -> None:  # noqa: B008 - frozen
        self._deadline = deadline
        self._now = deadline.now
        self._plan = plan
        self._pace = Pace()
        #: True once the script has called `is_due`.
        self._is_used = False
        #: When the loop began, and when the newest state was copied.
        self._began: float | None = None
        self._copied_at = 0.0
        self._due_at = -math.inf
        #: Average cost of a save, and average seconds until it is durable.
        self._cost: float | None = None
        self._write_seconds = 0.0
        self._known_saves = 0
        #: Copied states that are neither durable nor failed; negative if a result arrived before
        #: `note_copied`.
        self._pending = 0
        #: True if the last state was copied: there is no time for another save.
        self._is_last_copied = False
        #: Results of saves: blocked and durable seconds, or None for a failure.
        self._results: deque[tuple[float, float] | None] = deque()
        #: Why the newest state was copied, or why a save is due; shown to users.
        self.why = ""
        #: The interval, a remark about its limit, and the mean time between interruptions it was chosen for.
        self._choice: tuple[float, str, float] | None = None
        if plan.blocked is not None and plan.durable is not None:
            self._learn(max(0.0, plan.blocked), max(0.0, plan.durable))
            deadline.note_saved(max(0.0, plan.durable))

    def is_due(self) -> bool:
        """Return True if the loop should save now; true until a state is copied."""
        now = self._now()
        if self._pace.tick(now) or self._results or not self._is_used:
            self._is_used = True
            self._replan(now)
        if now < self._due_at and not self._deadline.stopping:
            return False
        if self._is_last_copied:
            return False
        self.why = self._reason(now)
        return True

    def note_copied(self, blocked: float) -> None:
        """Record that a state was copied, which blocked the loop for `blocked` seconds."""
        now = self._now()
        self._is_last_copied = self._is_last_copied or self._deadline.stopping or now >= self._last_save_at
        self.why = self._reason(now)
        self._deadline.note_blocked(blocked)
        self._pace.add_blocked(blocked)
        self._copied_at = now
        self._pending += 1
        self._replan(now)

    def note_saved(self, blocked: float, durable: float) -> None:
        """Record that a copied state is durable, `durable` seconds after its save began."""
        self._deadline.note_saved(durable)
        self._results.append((blocked, durable))

    def note_failed(self) -> None:
        """Record that a copied state could not be saved."""
        self._results.append(None)

    @property
    def _last_save_at(self) -> float:
        """The time of the last save before the deadline."""
        return self._deadline.last_save_at(self._pace.longest)

    def _replan(self, now: float) -> None:
        if self._began is None:
            self._began = self._copied_at = now
        while self._results:
            result = self._results.popleft()
            self._pending -= 1
            if result is not None:
                self._learn(*result)
        if self._copied_at < self._last_save_at and not self._deadline.stopping:
            self._is_last_copied = False  # steps are shorter than before, so there is time again
        self._due_at = math.inf if self._is_last_copied else min(self._next_save_at(now), self._last_save_at)

    def _learn(self, blocked: float, durable: float) -> None:
        cost = blocked + BACKGROUND_SHARE * max(0.0, durable - blocked)
        self._known_saves = min(self._known_saves + 1, AVERAGED_SAVES)
        self._cost = cost if self._cost is None else self._cost + (cost - self._cost) / self._known_saves
        self._write_seconds += (durable - self._write_seconds) / self._known_saves

    def _next_save_at(self, now: float) -> float:
        """Return the time of the next save, disregarding the last one before the deadline."""
        end = min(self._deadline.signal_at, self._last_save_at)
        if self._plan.every is not None:
            at = self._copied_at + self._plan.every
        elif self._pending > 0:
            # Another save would wait for this one. If its result never arrives, saving must still continue.
            return self._copied_at + max(self._plan.shortest, self._plan.longest)
        elif self._cost is None:
            left = max(0.0, end - self._copied_at)
            return self._copied_at + min(FIRST_SAVE_SECONDS, FIRST_SAVE_FRACTION * left)
        else:
            at = self._copied_at + self._interval(now, end)
        return at if at < end else self._last_save_at

    def _interval(self, now: float, end: float) -> float:
        """Return the best interval within its limits, adjusted to divide the time left into equal parts."""
        assert self._cost is not None and self._began is not None
        plan = self._plan
        seen = plan.observed + max(0.0, now - self._began)
        between = (seen + PRIOR_INTERVAL) / (plan.interruptions + 1)
        best, remark = daly(self._cost, between), ""
        if best > plan.longest:
            best, remark = plan.longest, ", the longest allowed"
        if best < self._write_seconds:
            best, remark = self._write_seconds, ", as long as it takes to write one"
        if best < plan.shortest:
            best, remark = plan.shortest, ", the shortest allowed"
        part = _equal_part(end - self._copied_at, best, max(plan.shortest, self._write_seconds), plan.longest)
        self._choice = part, remark if part > 0.9 * best else "", between
        return part

    def _reason(self, now: float) -> str:
        if self._deadline.is_signalled:
            reason = "at the stop signal"
        elif self._deadline.stopping or now >= self._last_save_at:
            reason = "the last before the deadline"
        elif not self._is_used or now < self._due_at:
            reason = "requested by the script"
        elif self._cost is None and self._plan.every is None:
            return "the first, to measure what a save costs"
        else:
            return self._describe_interval()
        interval = self._describe_interval() if self._is_used else ""
        # `outlast report` shows the part after "; else ".
        return "%s; else %s" % (reason, interval) if interval else reason

    def _describe_interval(self) -> str:
        if self._plan.every is not None:
            return "every %s, as configured" % show_duration(self._plan.every)
        if self._choice is None or self._cost is None:
            return ""
        part, remark, between = self._choice
        return "every %s%s: a save costs %s, and an interruption is expected every %s (%s so far)" % (
            show_duration(part),
            remark,
            show_duration(self._cost),
            show_duration(between),
            self._plan.interruptions or "none",
        )


def _equal_part(left: float, best: float, shortest: float, longest: float) -> float:
    """Return the length of equal parts of the time left: at most `best`, unless that makes them too short."""
    if not math.isfinite(left) or left <= 0:
        return best
    parts = min(left / max(best, SHORTEST_GAP), left // max(shortest, SHORTEST_GAP))
    return left / max(1, math.ceil(max(parts, left / max(longest, SHORTEST_GAP))))


def show_duration(seconds: float) -> str:
    """Return `0.4 s`, `4.3 min`, `13 h` or `2.5 d`: one unit, at most one decimal; days from two on.

    `node.quantities` has the same rule, which a test compares: this room imports nothing of `node`.
    """
    for unit, length, least in (("d", 86400.0, 2.0), ("h", 3600.0, 1.0), ("min", 60.0, 1.0)):
        if seconds >= least * length:
            return "%g %s" % (round(seconds / length, 1), unit)
    return "%s s" % ("%.1g" % seconds if seconds < 1 else "%g" % round(seconds, 1))
