"""When to save by itself: often enough that an interruption costs little, and always before the deadline.

Young and Daly: with C the cost of a save and M the mean time between interruptions, least is lost with saves
about √(2CM) apart. Under a wall-time limit that alone may be ruinous: what is longer than the job is never
reached. So the time until the end is divided into equal parts no longer than that, and the last save begins
while there is still time for one as slow as the slowest.

Nothing here reads a clock or a file; `Deadline` has been handed one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Callable, Mapping

from outlast.training import env
from outlast.training.deadline import Deadline, Pace

#: One interruption in so many seconds is believed before any was seen. A guess that is wrong by a factor of
#: four makes intervals wrong by two, which adds a quarter to what saving and lost work cost together.
PRIOR = 24 * 3600.0
#: What is written behind the training's back takes memory, cores and file system from it: this share counts.
BEHIND = 0.1
#: The first save shows what saving costs, and that it works here at all, before much depends on it: after so
#: many seconds, or this part of a short job.
FIRST = 60.0
FIRST_PART = 0.1
#: Over about so many saves their cost is averaged: file systems have busy hours.
MEMORY = 5
#: No two saves are planned closer than this many seconds.
TICK = 0.001


@dataclass(frozen=True)
class SavePlan:
    """What the user allows, and what earlier attempts of the run went through; all in seconds."""

    #: Between two saves; None: worked out here, within the two bounds.
    every: float | None = None
    shortest: float = env.DEFAULT_SHORTEST
    longest: float = env.DEFAULT_LONGEST
    #: How long the training was at work, and how often the cluster cut it short.
    observed: float = 0.0
    interruptions: int = 0
    #: How long a save held it up in the mean, and how long the slowest took to be durable; None: not known.
    blocked: float | None = None
    durable: float | None = None


def read_plan(environment: Mapping[str, str], number: Callable[[str], float | None]) -> SavePlan:
    """`number` gives a variable's value, or None where it has none that is a number."""

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
    """Seconds of work from one save to the next that lose least, if interruptions come `between` apart."""
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


class SaveInterval:
    """`due` is called in each step, `taken` when a state has been copied and the loop goes on.

    `saved` and `failed` tell what became of it later, from any thread: they only leave a note for the loop.
    """

    def __init__(self, clock: Deadline, plan: SavePlan = SavePlan()) -> None:  # noqa: B008 - frozen
        self._clock = clock
        self._now = clock.now
        self._plan = plan
        self._pace = Pace()
        #: Whether the training wants to know at all.
        self._asked = False
        #: When the loop began, and up to when its work is in a state that was taken.
        self._began: float | None = None
        self._since = 0.0
        self._due_at = -math.inf
        #: What a save costs and how long it takes to be durable, on average.
        self._cost: float | None = None
        self._writing = 0.0
        self._known = 0
        #: States taken that are neither durable nor failed; negative: the word was faster than the loop.
        self._under_way = 0
        #: The last one was taken: there is time for no other.
        self._final = False
        #: What became of saves: blocked and durable seconds, or None.
        self._news: deque[tuple[float, float] | None] = deque()
        #: Why the last state was taken, or why one is due.
        self.why = ""
        #: The interval, what bounds it, and the time between interruptions that it is for.
        self._choice: tuple[float, str, float] | None = None
        if plan.blocked is not None and plan.durable is not None:
            self._learn(max(0.0, plan.blocked), max(0.0, plan.durable))
            clock.saved(max(0.0, plan.durable))

    def due(self) -> bool:
        """Whether to save now; true until a state is taken."""
        now = self._now()
        if self._pace.beat(now) or self._news or not self._asked:
            self._asked = True
            self._look(now)
        if now < self._due_at and not self._clock.stopping:
            return False
        if self._final:
            return False
        self.why = self._why_now(now)
        return True

    def taken(self, blocked: float) -> None:
        """The loop has waited `blocked` seconds while the state was copied, and goes on."""
        now = self._now()
        self._final = self._final or self._clock.stopping or now >= self._last
        self.why = self._why_now(now)
        self._clock.blocked(blocked)
        self._pace.stood(blocked)
        self._since = now
        self._under_way += 1
        self._look(now)

    def saved(self, blocked: float, durable: float) -> None:
        """A state that was taken is durable, this long after its save began."""
        self._clock.saved(durable)
        self._news.append((blocked, durable))

    def failed(self) -> None:
        """A state that was taken is not durable and will not be."""
        self._news.append(None)

    @property
    def _last(self) -> float:
        """The moment of the last save before the deadline."""
        return self._clock.last_save_at(self._pace.longest)

    def _look(self, now: float) -> None:
        if self._began is None:
            self._began = self._since = now
        while self._news:
            told = self._news.popleft()
            self._under_way -= 1
            if told is not None:
                self._learn(*told)
        if self._since < self._last and not self._clock.stopping:
            self._final = False  # steps have become shorter, and there is time again
        self._due_at = math.inf if self._final else min(self._next(now), self._last)

    def _learn(self, blocked: float, durable: float) -> None:
        cost = blocked + BEHIND * max(0.0, durable - blocked)
        self._known = min(self._known + 1, MEMORY)
        self._cost = cost if self._cost is None else self._cost + (cost - self._cost) / self._known
        self._writing += (durable - self._writing) / self._known

    def _next(self, now: float) -> float:
        """The moment of the next save, the deadline apart."""
        end = min(self._clock.signal_at, self._last)
        if self._plan.every is not None:
            at = self._since + self._plan.every
        elif self._under_way > 0:
            # Another would have to wait for it; and if its end is never told, that must not be for ever.
            return self._since + max(self._plan.shortest, self._plan.longest)
        elif self._cost is None:
            return self._since + min(FIRST, FIRST_PART * max(0.0, end - self._since))
        else:
            at = self._since + self._interval(now, end)
        return at if at < end else self._last

    def _interval(self, now: float, end: float) -> float:
        """The best time between saves, within bounds, or the equal parts of the time left that come next."""
        assert self._cost is not None and self._began is not None
        plan = self._plan
        seen = plan.observed + max(0.0, now - self._began)
        between = (seen + PRIOR) / (plan.interruptions + 1)
        best, remark = daly(self._cost, between), ""
        if best > plan.longest:
            best, remark = plan.longest, ", the longest allowed"
        if best < self._writing:
            best, remark = self._writing, ", as long as it takes to write one"
        if best < plan.shortest:
            best, remark = plan.shortest, ", the shortest allowed"
        part = _part(end - self._since, best, max(plan.shortest, self._writing), plan.longest)
        self._choice = part, remark if part > 0.9 * best else "", between
        return part

    def _why_now(self, now: float) -> str:
        if self._clock.told:
            reason = "told to stop"
        elif self._clock.stopping or now >= self._last:
            reason = "the last before the deadline"
        elif not self._asked or now < self._due_at:
            reason = "the training's own choice"
        elif self._cost is None and self._plan.every is None:
            return "the first, to learn what a save costs"
        else:
            return self._pattern()
        pattern = self._pattern() if self._asked else ""
        return "%s; else %s" % (reason, pattern) if pattern else reason

    def _pattern(self) -> str:
        if self._plan.every is not None:
            return "every %s, as was asked for" % _span(self._plan.every)
        if self._choice is None or self._cost is None:
            return ""
        part, remark, between = self._choice
        return "every %s%s: a save costs %s, and an interruption is expected every %s (%s so far)" % (
            _span(part),
            remark,
            _span(self._cost),
            _span(between),
            self._plan.interruptions or "none",
        )


def _part(left: float, best: float, shortest: float, longest: float) -> float:
    """The time left in equal parts: no longer than the best, unless that makes them too short."""
    if not math.isfinite(left) or left <= 0:
        return best
    parts = min(left / max(best, TICK), left // max(shortest, TICK))
    return left / max(1, math.ceil(max(parts, left / max(longest, TICK))))


def _span(seconds: float) -> str:
    for unit, size, least in (("d", 86400.0, 2.0), ("h", 3600.0, 1.0), ("min", 60.0, 1.0)):
        if seconds >= least * size:
            return "%g %s" % (round(seconds / size, 1), unit)
    return "%s s" % ("%.1g" % seconds if seconds < 1 else "%g" % round(seconds, 1))
