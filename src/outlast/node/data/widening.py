"""How many connections: more than one only where the server holds each of them down, while it pays."""

from __future__ import annotations

import math
from collections import deque

from outlast.node.data.fetch_settings import FetchSettings

#: Looks that must agree before anything is concluded from them.
_STEADY = 3
#: The slowest and the fastest of them differ by no more.
_SPREAD = 1.5
#: What more connections must bring.
_PAYS = 1.3
#: As long as so many looks must be left of the transfer for a trial.
_WORTH = 10
#: So many looks until the next trial, doubled after each that did not pay.
_REST = 60


class Widening:
    def __init__(self, settings: FetchSettings) -> None:
        self._most = settings.connections
        self._worth = _WORTH * settings.look
        self._first_rest = _REST * settings.look
        self._rates: deque[float] = deque(maxlen=_STEADY)
        self._last: tuple[float, int, float] | None = None
        self._now = 1
        #: What one connection gave when it was left for more.
        self._single = 0.0
        #: Rate and number of connections when more were proposed, and before the trial that is on.
        self._proposed: tuple[float, int] | None = None
        self._before: tuple[float, int] | None = None
        self._not_before = -math.inf
        self._rest = self._first_rest
        self._settling = False

    def changed(self, connections: int) -> None:
        """So many are open now."""
        self._now = connections
        self._rates.clear()
        self._last = None
        self._settling = True
        if connections == 1:
            self._before = None
        elif self._proposed is not None and connections > self._proposed[1]:
            self._before = self._proposed

    def refused(self, now: float) -> None:
        """A trial that went wrong: the server does not like it."""
        self._back_off(now)
        self._before = self._proposed = None

    def look(self, now: float, received: int, waited: float, left: int | None) -> int:
        """How many it should be. To be asked at every look; `left`: bytes, None if not known."""
        last, self._last = self._last, (now, received, waited)
        if last is None or now <= last[0]:
            return self._now
        if self._settling:  # the first moments of a connection say little
            self._settling = False
            return self._now
        span = now - last[0]
        self._rates.append((received - last[1]) / span)
        if len(self._rates) < _STEADY:
            return self._now
        rate = sum(self._rates) / len(self._rates)
        if self._before is not None:
            return self._judge(now, rate)
        if self._now > 1 and rate < self._single:
            self._back_off(now)
            return 1
        held_up = waited - last[2] > span / 4
        steady = max(self._rates) <= _SPREAD * min(self._rates)
        worth = left is not None and rate > 0 and left / rate >= self._worth
        if self._now == 1 < self._most and now >= self._not_before and steady and worth and not held_up:
            self._proposed = (rate, self._now)
            self._single = rate
            return self._most
        return self._now

    def _judge(self, now: float, rate: float) -> int:
        assert self._before is not None, "a trial is on"
        before, connections = self._before
        self._before = self._proposed = None
        if rate >= _PAYS * before:
            self._rest = self._first_rest
            return self._now
        self._back_off(now)
        return connections

    def _back_off(self, now: float) -> None:
        self._not_before = now + self._rest
        self._rest *= 2
