"""Being heard of and staying able to hear, whatever the node program is doing.

Carrying outputs over, unpacking, hashing and delivering take minutes where there is much. Their loops call a
pulse for every block and file: it writes the heartbeat when one is due, and ends the work when the job must
end.
"""

from __future__ import annotations

import math
import time
from typing import Callable

from outlast.node.event_log import EventLog
from outlast.node.signals import Signals

#: Seconds between two heartbeats.
HEARTBEAT_INTERVAL = 15.0
#: Why work is given up when another job, or the controller, has the attempt now.
TAKEN_OVER = "taken over"


class Interrupted(Exception):
    """Work was given up because the job must end: for a stop signal, or else for its wall-time limit."""

    def __init__(self, signal: int | None, taken_over: bool = False) -> None:
        super().__init__(signal)
        self.signal = signal
        self.why = TAKEN_OVER if taken_over else "limit" if signal is None else "signal"


def no_pulse() -> None:
    """The pulse of work that nobody waits for."""


class Pulse:
    """Until `wind_up` a stop signal ends the work at once; from then on what is under way has the grace."""

    def __init__(
        self,
        signals: Signals,
        events: EventLog,
        last_moment: float,
        grace: float,
        is_superseded: Callable[[], bool] = lambda: False,
        at_each_beat: Callable[[], None] = no_pulse,
    ) -> None:
        #: Another has the attempt now: nothing that this job does counts any more.
        self.taken_over = False
        self._is_superseded = is_superseded
        self._at_each_beat = at_each_beat
        self.signals = signals
        self.events = events
        self.next_beat = time.monotonic() + HEARTBEAT_INTERVAL
        self._last_moment = last_moment
        self._grace = grace
        self._winding_up = False
        self._not_before = -math.inf
        self._stop_seen: float | None = None

    def __call__(self) -> None:
        self.beat()
        if time.monotonic() >= self.until():
            raise self.interruption()

    def wind_up(self, at_least: float = -math.inf) -> None:
        """The training has ended; what is left to do may take `at_least` seconds in any case."""
        self._winding_up = True
        self._not_before = time.monotonic() + at_least

    def beat(self) -> None:
        now = time.monotonic()
        if now >= self.next_beat:
            self.events.write("beat")
            self.next_beat = now + HEARTBEAT_INTERVAL
            self.taken_over = self._is_superseded()
            self._at_each_beat()

    def stop_signal(self) -> int | None:
        """The first stop signal so far. The grace is counted from when it is first seen here."""
        received = self.signals.pending_stop()
        if received is not None and self._stop_seen is None:
            self._stop_seen = time.monotonic()
        return received

    def until(self) -> float:
        """The moment, on the monotonic clock, at which work is given up, by what is known now."""
        if self.taken_over:
            return -math.inf
        end = self._last_moment
        if self.stop_signal() is not None and self._stop_seen is not None:
            end = min(end, self._stop_seen + self._grace) if self._winding_up else -math.inf
        return max(end, self._not_before)

    def interruption(self) -> Interrupted:
        return Interrupted(self.stop_signal(), self.taken_over)
