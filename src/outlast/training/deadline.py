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
#: The same for a step: what comes between two calls is more regular than a file system.
_STEP_MARGIN = 1.1
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)


class Pace:
    """How far apart the calls of a loop come, without the time in which it stood still for a save."""

    def __init__(self) -> None:
        #: Seconds from call to call: the first, and the longest of the others.
        self._first = 0.0
        self._longest = 0.0
        self._intervals = 0
        self._last: float | None = None
        #: Seconds of the current interval that went into saving.
        self._stood = 0.0

    def stood(self, seconds: float) -> None:
        self._stood += seconds

    def beat(self, now: float) -> bool:
        """A call came; whether `longest` is another one now."""
        before, self._last = self._last, now
        if before is None:
            return False
        interval = now - before
        if self._intervals > 2 and interval <= self._longest:
            self._stood = 0.0
            return False
        return self._note(max(0.0, interval - self._stood))

    def _note(self, interval: float) -> bool:
        longest = self.longest
        self._stood = 0.0
        self._intervals += 1
        if self._intervals == 1:
            self._first = interval
        else:
            self._longest = max(self._longest, interval)
        return self.longest != longest

    @property
    def longest(self) -> float:
        # The first one holds what happens once, such as compiling; it counts until others are known.
        return max(self._first, self._longest) if self._intervals < 3 else self._longest


class Deadline:
    """The deadline of one attempt; `now` is a monotonic clock."""

    def __init__(
        self,
        deadline: float | None = None,
        grace: float = 0.0,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = now
        self._ends = math.inf if deadline is None else now() + (deadline - wall())
        # A grace that is most of a short job would leave no time to train.
        self._grace = min(grace, max(0.0, self.time_left()) / 4)
        self._half = max(0.0, self.time_left()) / 2
        #: It is time to save and leave; `told`: because a stop signal came.
        self.stopping = False
        self.told = False
        self._slowest_save: float | None = None
        self._pace = Pace()

    def time_left(self) -> float:
        return self._ends - self.now()

    @property
    def signal_at(self) -> float:
        """When the stop signal comes, on the monotonic clock, if nothing ends the job before."""
        return self._ends - self._grace

    def last_save_at(self, interval: float) -> float:
        """When the last save must begin at the latest, in a loop that looks at the clock every `interval`."""
        return self._ends - self._reserve(interval)

    def listen(self) -> None:
        """Take stop signals whose disposition is the default one; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.told = self.stopping = True

    def blocked(self, seconds: float) -> None:
        """The training waited this long for a save; that is no part of a step."""
        self._pace.stood(seconds)

    def saved(self, seconds: float) -> None:
        """A save was durable after this long; the last one may take longer."""
        self._slowest_save = max(self._slowest_save or 0.0, seconds)

    def should_stop(self) -> bool:
        """Whether to save and leave now; once true, always true."""
        now = self.now()
        self._pace.beat(now)
        if self._ends - now <= self._reserve(self._pace.longest):
            self.stopping = True
        return self.stopping

    def _reserve(self, interval: float) -> float:
        """Seconds that must be left for it to be safe to go on until the next call.

        The next call may come as late as the longest interval, and the save begins only then. How long it
        takes is known from the saves so far; before the first, half the grace stands in for it. Half the
        grace is also the least: the signal comes a whole grace before the deadline, so that time alone
        decides only when no signal came or when saving is slower than the grace allows for. The margin is
        not worth half of the job: where saves are that slow, a job would end before it got anywhere.
        """
        half = self._grace / 2
        save, margin = half, 0.0
        if self._slowest_save is not None:
            save, margin = self._slowest_save, self._slowest_save * (_SAVE_MARGIN - 1)
        least = save + interval * _STEP_MARGIN
        return max(half, least, min(least + margin, self._half))
