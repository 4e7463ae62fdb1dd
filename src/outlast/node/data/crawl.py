"""When a source gives bytes, and so few that another one, or another connection, is better.

Few is relative: a share of what these sources just gave. And there must be something better to turn to: a
source that was no faster when it was last tried is not.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Sequence

from outlast.node.data.fetch_settings import FetchSettings

#: Seconds for which a measured rate tells something.
_MEMORY = 600.0
#: Seconds before the same source is tried again over a new connection for being slow.
_RECONNECT = 300.0
#: A source is worth turning to if it was so much faster.
_BETTER = 2.0


@dataclass(frozen=True)
class Slow:
    rate: float
    reference: float
    #: Seconds that the window would have been shorter by.
    lost: float
    #: The source to turn to; None: the same one, over a new connection.
    better: int | None


class Crawl:
    def __init__(self, settings: FetchSettings) -> None:
        self._share = settings.crawl_share
        self._window = settings.crawl_window
        self._samples: deque[tuple[float, int, float]] = deque()
        self._source: int | None = None
        self._measured: dict[int, tuple[float, float]] = {}
        self._best: deque[tuple[float, float]] = deque()
        self._reconnected: dict[int, float] = {}

    def connected(self, source: int) -> None:
        self._source = source
        self._samples.clear()

    def look(self, now: float, received: int, waited: float, others: Sequence[int]) -> Slow | None:
        """`received`: bytes so far; `waited`: seconds so far for which the disk held the receiver up.

        What is returned is acted upon: the connection is closed.
        """
        samples, source = self._samples, self._source
        samples.append((now, received, waited))
        while len(samples) > 1 and now - samples[1][0] >= self._window:
            samples.popleft()
        began, bytes_then, waited_then = samples[0]
        span = now - began
        if source is None or span < self._window:
            return None
        rate = (received - bytes_then) / span
        if waited - waited_then > span / 2:
            return None
        self._measured[source] = (now, min(rate, self._lately(now, received)))
        reference = self._reference(now, rate)
        if rate >= self._share * reference:
            return None
        better = self._better(now, rate, others)
        if better is None:
            if now - self._reconnected.get(source, -math.inf) <= _RECONNECT:
                return None
            self._reconnected[source] = now
        return Slow(rate, reference, span * (1 - rate / reference), better)

    def _lately(self, now: float, received: int) -> float:
        """Over the last part of the window: what it has come down to, while the window still holds better."""
        then, bytes_then, _ = next(
            (sample for sample in reversed(self._samples) if now - sample[0] >= self._window / 4),
            self._samples[0],
        )
        return (received - bytes_then) / (now - then)

    def _reference(self, now: float, rate: float) -> float:
        """The best rate over a window, lately. The queue holds what no later one has exceeded."""
        best = self._best
        while best and best[-1][1] <= rate:
            best.pop()
        best.append((now, rate))
        while now - best[0][0] > _MEMORY:
            best.popleft()
        return best[0][1]

    def _better(self, now: float, rate: float, others: Sequence[int]) -> int | None:
        for other in others:
            at, measured = self._measured.get(other, (-math.inf, 0.0))
            if now - at > _MEMORY or measured > _BETTER * rate:
                return other
        return None
