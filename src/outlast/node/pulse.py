"""The pulse: writes heartbeats during long work of the node program, and interrupts it when the job must end.

Copying, unpacking, hashing and delivering can take minutes. Their loops call a pulse for every block and
every file: it writes a heartbeat when one is due, and raises Interrupted when the work must stop.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Mapping

from outlast.node.event_log import EventLog
from outlast.node.protocol import STOP_AT_LIMIT, STOP_SIGNALLED
from outlast.node.signals import Signals

#: Seconds between two heartbeats.
HEARTBEAT_INTERVAL = 15.0
#: `why` in the event "stop": another job, or the controller, holds the attempt now.
TAKEN_OVER = "taken over"


class Interrupted(Exception):
    """The job must end: for a stop signal, for its wall-time limit, or because the attempt was taken over."""

    def __init__(self, signal: int | None, taken_over: bool = False) -> None:
        super().__init__(signal)
        self.signal = signal
        self.why = TAKEN_OVER if taken_over else STOP_AT_LIMIT if signal is None else STOP_SIGNALLED


def no_pulse() -> None:
    """Do nothing: the pulse for work that is never interrupted."""


class Pulse:
    """A callable for the loops of long work.

    Until `begin_handover` a stop signal interrupts the work at once; afterwards the work may use the grace.
    """

    def __init__(
        self,
        signals: Signals,
        events: EventLog,
        last_moment: float,
        grace: float,
        is_superseded: Callable[[], bool] = lambda: False,
        on_heartbeat: Callable[[], None] = no_pulse,
    ) -> None:
        #: Another job holds the attempt now: nothing that this job does counts any more.
        self.taken_over = False
        self._is_superseded = is_superseded
        self._on_heartbeat = on_heartbeat
        self.signals = signals
        self.events = events
        #: Returns more fields for a heartbeat.
        self.measure: Callable[[], Mapping[str, Any]] = dict
        #: On the monotonic clock.
        self.next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL
        self._last_moment = last_moment
        self._grace = grace
        self._in_handover = False
        self._not_before = -math.inf
        self._stop_seen: float | None = None

    def __call__(self) -> None:
        """Write a heartbeat if one is due. Raises Interrupted if the work must stop."""
        self.heartbeat()
        if time.monotonic() >= self.give_up_at():
            raise self.interruption()

    def begin_handover(self, at_least: float = -math.inf) -> None:
        """Record that the training has ended; the remaining work gets at least `at_least` seconds."""
        self._in_handover = True
        self._not_before = time.monotonic() + at_least

    def heartbeat(self) -> None:
        """Write a heartbeat if one is due, and check then whether the attempt was taken over."""
        now = time.monotonic()
        if now >= self.next_heartbeat:
            self.events.write("beat", **self.measure())
            self.next_heartbeat = now + HEARTBEAT_INTERVAL
            self.taken_over = self._is_superseded()
            self._on_heartbeat()

    def stop_signal(self) -> int | None:
        """Return the first stop signal so far, or None. The grace begins when this first returns it."""
        received = self.signals.pending_stop()
        if received is not None and self._stop_seen is None:
            self._stop_seen = time.monotonic()
        return received

    def give_up_at(self) -> float:
        """Return the monotonic time at which work is interrupted, as far as is known now."""
        if self.taken_over:
            return -math.inf
        end = self._last_moment
        if self.stop_signal() is not None and self._stop_seen is not None:
            end = min(end, self._stop_seen + self._grace) if self._in_handover else -math.inf
        return max(end, self._not_before)

    def interruption(self) -> Interrupted:
        """Return the exception with the reason for an interruption now."""
        return Interrupted(self.stop_signal(), self.taken_over)
