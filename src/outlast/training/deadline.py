"""The deadline of a job, and the stop signals that come before it.

The deadline is a time of the monotonic clock, so changes of the system clock have no effect. A stop signal
only makes the stop earlier; the deadline holds without one, because signals can get lost.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Callable

#: The last save may take this many times as long as the slowest so far.
_SAVE_MARGIN = 2.0
#: The next step may take this many times as long as the slowest so far; steps vary less than file systems.
_STEP_MARGIN = 1.1
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)


class Pace:
    """The time between the calls of a loop, not counting time that the loop was blocked by a save."""

    def __init__(self) -> None:
        #: Seconds between calls: the first interval, and the longest of the others.
        self._first = 0.0
        self._longest = 0.0
        self._intervals = 0
        self._last: float | None = None
        #: Seconds of the current interval in which the loop was blocked by a save.
        self._blocked = 0.0

    def add_blocked(self, seconds: float) -> None:
        """Add seconds in which the loop was blocked; they do not count as part of the current interval."""
        self._blocked += seconds

    def tick(self, now: float) -> bool:
        """Record a call at time `now`. Return True if `longest` has changed."""
        before, self._last = self._last, now
        if before is None:
            return False
        interval = now - before
        if self._intervals > 2 and interval <= self._longest:
            self._blocked = 0.0
            return False
        return self._record(max(0.0, interval - self._blocked))

    def _record(self, interval: float) -> bool:
        longest = self.longest
        self._blocked = 0.0
        self._intervals += 1
        if self._intervals == 1:
            self._first = interval
        else:
            self._longest = max(self._longest, interval)
        return self.longest != longest

    @property
    def longest(self) -> float:
        """The longest interval in seconds; 0 until one is complete."""
        # The first interval includes one-time work such as compiling, so it counts only until others are
        # known.
        return max(self._first, self._longest) if self._intervals < 3 else self._longest


class Deadline:
    """The deadline and stop state of one attempt; `now` is a monotonic clock, and `ends` a time of it."""

    def __init__(
        self,
        ends: float | None = None,
        grace: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = now
        self._ends = math.inf if ends is None else ends
        # Limit the grace period, so that a short job still has time to train.
        self._grace = min(grace, max(0.0, self.time_left()) / 4)
        self._half_job = max(0.0, self.time_left()) / 2
        #: Set when it is time to save and leave; `is_signalled` if a stop signal was the reason.
        self.stopping = False
        self.is_signalled = False
        self._slowest_save: float | None = None
        self._pace = Pace()

    def time_left(self) -> float:
        """Return the seconds until the deadline; infinity without one."""
        return self._ends - self.now()

    @property
    def signal_at(self) -> float:
        """The monotonic time at which the scheduler's stop signal is expected."""
        return self._ends - self._grace

    def last_save_at(self, interval: float) -> float:
        """Return the latest monotonic time to begin the last save.

        `interval` is the longest time between two checks of the loop, in seconds.
        """
        return self._ends - self._reserve(interval)

    def install_handlers(self) -> None:
        """Handle the stop signals that have the default disposition. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_signalled = self.stopping = True

    def note_blocked(self, seconds: float) -> None:
        """Record that a save blocked the loop for `seconds`; that time is not part of a step."""
        self._pace.add_blocked(seconds)

    def note_saved(self, seconds: float) -> None:
        """Record that a save took `seconds` until it was durable."""
        self._slowest_save = max(self._slowest_save or 0.0, seconds)

    def should_stop(self) -> bool:
        """Return True if it is time to save and leave; once true, always true."""
        now = self.now()
        self._pace.tick(now)
        if self._ends - now <= self._reserve(self._pace.longest):
            self.stopping = True
        return self.stopping

    def _reserve(self, interval: float) -> float:
        """Return the seconds that must be left so that the loop can safely continue until its next call.

        The next call may come as late as the longest interval, and the save begins only then. The duration of
        a save is known from earlier saves; before the first, half the grace period is assumed. Half the grace
        period is also the minimum: the signal comes a whole grace period before the deadline, so time alone
        decides only if no signal came or if saving takes longer than the grace period allows. The margin
        never takes more than half of the job; otherwise a job with very slow saves would stop before it made
        progress.
        """
        half = self._grace / 2
        save, margin = half, 0.0
        if self._slowest_save is not None:
            save, margin = self._slowest_save, self._slowest_save * (_SAVE_MARGIN - 1)
        least = save + interval * _STEP_MARGIN
        return max(half, least, min(least + margin, self._half_job))
