"""Which source is used next, and when.

The first source in order that is not excluded or deferred is used. A source is excluded when trying it again
cannot help, and deferred for a growing time after each failure. While another source is available nobody
waits; otherwise the pauses are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

from outlast.node.staging.errors import FINAL, ErrorKind, SourceError
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings

#: The source does not deliver the file now, but may later.
_REFUSALS = frozenset({ErrorKind.MISSING_FOR_NOW, ErrorKind.REFUSED, ErrorKind.PROXY_REFUSED})
#: Errors that do not count as failures of the source.
_NOT_COUNTED = frozenset({ErrorKind.NO_RANGES, ErrorKind.CRAWL})
#: Failures in a row after which a source is no longer preferred: one that starts at byte 0 may replace it.
_MAX_FAILURES = 3


@dataclass
class SourceState:
    """The history of one source within a fetch."""

    #: Why the source is excluded; None while it is usable.
    excluded_for: SourceError | None = None
    last_error: SourceError | None = None
    #: Failures in a row that brought less than a block.
    failures: int = 0
    #: The source is not used before this time.
    not_before: float = -math.inf
    #: Until this time other sources come first.
    deferred_until: float = -math.inf
    #: The source sends the file from byte 0, whichever range is requested.
    ignores_ranges: bool = False
    #: "Missing" or "refused" responses in a row, and when the first of them came.
    refusals: int = 0
    refused_since: float = 0.0


@dataclass(frozen=True)
class Pick:
    """The index of the source to use next, and the time before which it must not be used."""

    index: int
    not_before: float


class SourceSelector:
    """Picks the next source from the failures so far. `states` are in the order of `names`."""

    def __init__(self, names: Sequence[str], settings: FetchSettings, clock: FetchClock) -> None:
        self.names = tuple(names)
        self.states = [SourceState() for _ in names]
        #: Use only this source, so that wrong bytes can be attributed to it.
        self.only: int | None = None
        #: Pick this source next, once, if it is available: it is faster.
        self.preferred: int | None = None
        self._settings = settings
        self._clock = clock

    def usable(self) -> list[int]:
        """Return the sources that are not excluded, in order."""
        return [index for index, state in enumerate(self.states) if state.excluded_for is None]

    def alternatives(self, index: int) -> list[int]:
        """Return the sources that could replace this one at once."""
        if self.only is not None:
            return []
        now = self._clock.now()
        return [
            other
            for other in self.usable()
            if other != index
            and self.states[other].deferred_until <= now
            and not self.states[other].ignores_ranges
        ]

    def pick(self, position: int) -> Pick | None:
        """Return the source to continue with at this byte; None if all are excluded."""
        candidates = self._candidates(position)
        if not candidates:
            return None
        now = self._clock.now()
        if self.only is not None:
            state = self.states[self.only]
            if state.excluded_for is None and (state.failures < _MAX_FAILURES or candidates == [self.only]):
                return Pick(self.only, max(now, state.not_before))
            self.only = None
        preferred, self.preferred = self.preferred, None
        ready = [index for index in candidates if self.states[index].not_before <= now]
        not_deferred = [index for index in ready if self.states[index].deferred_until <= now]
        if preferred in not_deferred:
            return Pick(preferred, now)
        if not_deferred:
            return Pick(not_deferred[0], now)
        if ready:
            return Pick(min(ready, key=lambda index: self.states[index].deferred_until), now)
        index = min(candidates, key=lambda index: self.states[index].not_before)
        return Pick(index, self.states[index].not_before)

    def _candidates(self, position: int) -> list[int]:
        """Return the usable sources; in mid-file without those that ignore ranges, unless the rest fails."""
        usable = self.usable()
        ranged = [index for index in usable if not self.states[index].ignores_ranges]
        has_hope = any(self.states[index].failures < _MAX_FAILURES for index in ranged)
        return ranged if position > 0 and has_hope else usable

    def exclude(self, index: int, error: SourceError) -> None:
        """Do not use this source again."""
        self.states[index].excluded_for = self.states[index].last_error = error

    def readmit_changed(self) -> None:
        """Readmit sources excluded for having another file: the file they differed from is discarded."""
        for state in self.states:
            if state.excluded_for is not None and state.excluded_for.kind is ErrorKind.CHANGED:
                state.excluded_for = None

    def record_failure(self, index: int, error: SourceError, gained: int) -> None:
        """Exclude or defer a source after an error. `gained`: new bytes from this connection."""
        state, now = self.states[index], self._clock.now()
        state.last_error = error
        if error.kind in FINAL:
            state.excluded_for = error
            return
        self._count_failure(state, error.kind, gained, now)
        if error.kind is ErrorKind.NO_RANGES:
            state.ignores_ranges = True
            return
        if error.kind is ErrorKind.REFUSED and state.refusals == 1:
            return  # retried at once: the token is read again for each request
        pause = self._backoff(max(1, state.failures))
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, self._settings.longest_retry_after))
        state.deferred_until = now + pause
        if state.failures or error.retry_after is not None:
            state.not_before = state.deferred_until

    def _count_failure(self, state: SourceState, kind: ErrorKind, gained: int, now: float) -> None:
        if gained >= self._settings.block_size:
            state.failures = 0
        elif kind not in _NOT_COUNTED:
            state.failures += 1
        if kind not in _REFUSALS or gained:
            state.refusals = 0
        if kind in _REFUSALS:
            state.refused_since = state.refused_since if state.refusals else now
            state.refusals += 1

    def _backoff(self, failures: int) -> float:
        """Return the pause in seconds after this many failures in a row."""
        settings = self._settings
        pause = min(settings.longest_pause, settings.first_pause * 2.0 ** min(failures - 1, 30))
        # Spread out: a hundred jobs that failed together must not return together.
        return pause * (0.5 + 0.5 * self._clock.jitter())

    def refusal_deadline(self) -> float | None:
        """Return when the fetch gives up if all sources keep refusing; None if one does not refuse."""
        left = [self.states[index] for index in self.usable()]
        if not left or not all(state.refusals for state in left):
            return None
        end = max(state.refused_since for state in left) + self._settings.refusal_seconds
        return end if end > self._clock.now() else None

    def final_error(self) -> SourceError | None:
        """Return the error to give up with; None while a source may still deliver.

        Give up when all sources are excluded, or when all usable ones have refused often and long enough.
        """
        now, settings = self._clock.now(), self._settings
        left = [self.states[index] for index in self.usable()]
        if not left:
            errors = (state.last_error for state in reversed(self.states))
            return next((error for error in errors if error is not None), None)
        for state in left:
            long_enough = now - state.refused_since >= settings.refusal_seconds
            if state.refusals < settings.refusals or not long_enough:
                return None
        error = left[0].last_error
        assert error is not None, "it has refused"
        if error.kind is ErrorKind.MISSING_FOR_NOW:
            return SourceError(ErrorKind.MISSING, error.detail, error.source)
        return error
