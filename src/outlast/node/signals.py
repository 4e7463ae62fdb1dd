"""How the node program learns of stop signals and of its children's ends: as events, in order, none lost."""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Any

#: Any of these means: stop soon. Which one a scheduler sends differs from site to site.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Catches signals from `with` on; they are kept until somebody asks.

    The interpreter writes every signal's number into a pipe, which `wait` listens to. So nothing is polled,
    and a signal that came while no training was there yet is found by the first question after it.
    """

    def __init__(self) -> None:
        #: The first stop signal that came, once `wait` or `pending_stop` has seen it.
        self._stop: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        # SIGCHLD may have been inherited as ignored, and then no exit status would ever reach us.
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            self._before[number] = signal.signal(number, _leave_it_to_the_pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        try:
            signal.set_wakeup_fd(self._wakeup_before)
        except (ValueError, OSError):
            # The descriptor belonged to a process that we were forked from and is closed here.
            signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def pending_stop(self) -> int | None:
        """The first stop signal so far."""
        self._drain()
        return self._stop

    def wait(self, seconds: float) -> None:
        """Return when a signal came (a child's end is one), or after `seconds`."""
        self._poll.poll(max(0.0, seconds) * 1000)
        self._drain()

    def wait_until(self, moment: float) -> None:
        """As `wait`, until a moment of the monotonic clock."""
        self.wait(moment - time.monotonic())

    def _drain(self) -> None:
        while True:
            try:
                numbers = os.read(self._reader, 4096)
            except BlockingIOError:
                return
            for number in numbers:
                if self._stop is None and number in STOP_SIGNALS:
                    self._stop = number


def _leave_it_to_the_pipe(number: int, frame: FrameType | None) -> None:
    """The interpreter writes to the wakeup pipe only for signals that have a handler."""
