"""How long the training may go on, and whether it has been asked to stop.

The deadline comes from the environment and is turned into the monotonic clock at import, so that a clock
that is set afterwards moves nothing. A stop signal only makes it sooner: signals get lost on the way.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Callable

#: How much longer than the slowest save so far the last one may take.
_SAVE_MARGIN = 2.0
_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2")


class Clock:
    """The deadline of one attempt; `now` is a monotonic clock."""

    def __init__(
        self,
        deadline: float | None = None,
        grace: float = 0.0,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._ends = math.inf if deadline is None else now() + (deadline - wall())
        # A grace that is most of a short job would leave no time to train.
        self._grace = min(grace, max(0.0, self.time_left()) / 4)
        self._stop = False
        self._slowest_save: float | None = None
        #: Seconds between calls of should_stop(): the first, and the longest of the others.
        self._first_interval: float | None = None
        self._longest_interval = 0.0
        self._intervals = 0
        self._last_call: float | None = None
        #: Seconds of the current interval that went into saving.
        self._saving = 0.0

    def time_left(self) -> float:
        return self._ends - self._now()

    def listen(self) -> None:
        """Take stop signals whose disposition is the default one; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def saved(self, seconds: float, durable: bool) -> None:
        """A save took this long; only one that ended well says how long the last one may take."""
        self._saving += seconds
        if durable:
            self._slowest_save = max(self._slowest_save or 0.0, seconds)

    def should_stop(self) -> bool:
        """Whether to save and leave now; once true, always true."""
        self._note_interval()
        if self.time_left() <= self._reserve():
            self._stop = True
        return self._stop

    def _reserve(self) -> float:
        """Seconds that must be left for it to be safe to go on until the next call.

        The next call may come as late as the longest interval, and the save begins only then. How long it
        takes is known from the saves so far; before the first, half the grace stands in for it. Half the
        grace is also the least: the signal comes a whole grace before the deadline, so that time alone
        decides only when no signal came or when saving is slower than the grace allows for.
        """
        half = self._grace / 2
        save = half if self._slowest_save is None else self._slowest_save * _SAVE_MARGIN
        return max(half, save + self._interval())

    def _interval(self) -> float:
        # The first one holds what happens once, such as compiling; it counts until others are known.
        known: list[float] = [self._longest_interval]
        if self._first_interval is not None and self._intervals < 3:
            known.append(self._first_interval)
        return max(known)

    def _note_interval(self) -> None:
        now = self._now()
        if self._last_call is not None:
            interval = max(0.0, now - self._last_call - self._saving)
            self._intervals += 1
            if self._first_interval is None:
                self._first_interval = interval
            else:
                self._longest_interval = max(self._longest_interval, interval)
        self._last_call = now
        self._saving = 0.0
