"""Which source is asked next, and when: the first in order that is not put aside.

A source is put aside for good when asking again cannot help, and for a while, ever longer, when it fails. As
long as another is to be had nobody waits; where none is, the pauses are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

from outlast.node.staging.errors import FINAL, ErrorKind, SourceError
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings

#: What a source says when it does not give the file, and may yet.
_NO_FOR_NOW = frozenset({ErrorKind.MISSING_FOR_NOW, ErrorKind.REFUSED})
#: Troubles that say nothing against asking this source again at once.
_HARMLESS = frozenset({ErrorKind.NO_RANGES, ErrorKind.CRAWL})
#: Sources that can go on where we are have failed so often in a row that one which begins anew is better.
_HOPE = 3


@dataclass
class SourceState:
    """What is to be said of one source."""

    #: Why it is put aside for good.
    gone: SourceError | None = None
    last: SourceError | None = None
    #: Failures in a row that brought nothing worth the while.
    failures: int = 0
    #: Until then it is not asked, and until then others come first.
    wait_until: float = -math.inf
    aside_until: float = -math.inf
    #: It begins at the first byte whatever it is asked for.
    rangeless: bool = False
    #: "Not there" or "not for you", so often in a row, first at that time.
    refusals: int = 0
    refused_since: float = 0.0


@dataclass(frozen=True)
class Pick:
    index: int
    not_before: float


class SourceSelector:
    def __init__(self, names: Sequence[str], settings: FetchSettings, clock: FetchClock) -> None:
        self.names = tuple(names)
        self.standings = [SourceState() for _ in names]
        #: Only this one, so that what it gives can be held against it alone.
        self.alone: int | None = None
        #: To be asked next, once, if it can be: it is faster.
        self.hint: int | None = None
        self._settings = settings
        self._clock = clock

    def usable(self) -> list[int]:
        """Those that are not put aside for good, in order."""
        return [index for index, standing in enumerate(self.standings) if standing.gone is None]

    def others(self, index: int) -> list[int]:
        """Those to turn to at once instead of this one."""
        if self.alone is not None:
            return []
        now = self._clock.now()
        return [
            other
            for other in self.usable()
            if other != index
            and self.standings[other].aside_until <= now
            and not self.standings[other].rangeless
        ]

    def next(self, position: int) -> Pick | None:
        """Whose turn it is to go on at this byte; None: nobody is left."""
        candidates = self._able(self.usable(), position)
        if not candidates:
            return None
        now = self._clock.now()
        if self.alone is not None:
            standing = self.standings[self.alone]
            if standing.gone is None and (standing.failures < _HOPE or candidates == [self.alone]):
                return Pick(self.alone, max(now, standing.wait_until))
            self.alone = None
        hint, self.hint = self.hint, None
        ready = [index for index in candidates if self.standings[index].wait_until <= now]
        fresh = [index for index in ready if self.standings[index].aside_until <= now]
        if hint in fresh:
            return Pick(hint, now)
        if fresh:
            return Pick(fresh[0], now)
        if ready:
            return Pick(min(ready, key=lambda index: self.standings[index].aside_until), now)
        index = min(candidates, key=lambda index: self.standings[index].wait_until)
        return Pick(index, self.standings[index].wait_until)

    def _able(self, candidates: list[int], position: int) -> list[int]:
        """Without those that would begin anew, unless the others have nothing to offer."""
        able = [index for index in candidates if not self.standings[index].rangeless]
        hopeful = any(self.standings[index].failures < _HOPE for index in able)
        return able if position > 0 and hopeful else candidates

    def put_aside(self, index: int, trouble: SourceError) -> None:
        """For good."""
        self.standings[index].gone = self.standings[index].last = trouble

    def reconsider(self) -> None:
        """What was begun is thrown away: that a source contradicted it is no reason any more."""
        for standing in self.standings:
            if standing.gone is not None and standing.gone.kind is ErrorKind.CHANGED:
                standing.gone = None

    def failed(self, index: int, trouble: SourceError, gained: int) -> None:
        """`gained`: new bytes that it had given since it was asked."""
        standing, now = self.standings[index], self._clock.now()
        standing.last = trouble
        if trouble.kind in FINAL:
            standing.gone = trouble
            return
        self._count(standing, trouble.kind, gained, now)
        if trouble.kind is ErrorKind.NO_RANGES:
            standing.rangeless = True
            return
        if trouble.kind is ErrorKind.REFUSED and standing.refusals == 1:
            return  # the token is read anew for the second try, which may come at once
        pause = self._pause(max(1, standing.failures))
        if trouble.retry_after is not None:
            pause = max(pause, min(trouble.retry_after, self._settings.longest_retry_after))
        standing.aside_until = now + pause
        if standing.failures or trouble.retry_after is not None:
            standing.wait_until = standing.aside_until

    def _count(self, standing: SourceState, kind: ErrorKind, gained: int, now: float) -> None:
        if gained >= self._settings.block:
            standing.failures = 0
        elif kind not in _HARMLESS:
            standing.failures += 1
        if kind not in _NO_FOR_NOW or gained:
            standing.refusals = 0
        if kind in _NO_FOR_NOW:
            standing.refused_since = standing.refused_since if standing.refusals else now
            standing.refusals += 1

    def _pause(self, failures: int) -> float:
        settings = self._settings
        pause = min(settings.longest_pause, settings.first_pause * 2.0 ** min(failures - 1, 30))
        # A hundred jobs that failed together must not come back together.
        return pause * (0.5 + 0.5 * self._clock.chance())

    def refusals_end(self) -> float | None:
        """Return when the refusals so far, if they go on, end the fetch; None if they do not."""
        left = [self.standings[index] for index in self.usable()]
        if not left or not all(standing.refusals for standing in left):
            return None
        end = max(standing.refused_since for standing in left) + self._settings.refusal_seconds
        return end if end > self._clock.now() else None

    def verdict(self) -> SourceError | None:
        """That it is of no use to go on: every source that is left has said no often and long enough."""
        now, settings = self._clock.now(), self._settings
        left = [self.standings[index] for index in self.usable()]
        if not left:
            return next((s.last for s in reversed(self.standings) if s.last is not None), None)
        for standing in left:
            long_enough = now - standing.refused_since >= settings.refusal_seconds
            if standing.refusals < settings.refusals or not long_enough:
                return None
        last = left[0].last
        assert last is not None, "it was refused"
        if last.kind is ErrorKind.MISSING_FOR_NOW:
            return SourceError(ErrorKind.MISSING, last.detail, last.source)
        return last
