"""Stop signals and ends of children as events of the node program: in order, and none is lost."""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Any

#: Each of these means: stop soon. Sites differ in which one the scheduler sends.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """A context manager that catches signals and keeps them until they are read.

    The interpreter writes the number of every signal into a pipe, on which `wait` blocks. So there is no
    polling, and the first call after a signal finds it, even if it came before the training started.
    """

    def __init__(self) -> None:
        #: The first stop signal that `wait` or `pending_stop` has read from the pipe.
        self._stop: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        # SIGCHLD may have been inherited as ignored; then exit statuses would be lost.
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            self._before[number] = signal.signal(number, _do_nothing)
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
            # The descriptor belongs to a parent that this process was forked from, and is closed here.
            signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def pending_stop(self) -> int | None:
        """Return the first stop signal so far, or None."""
        self._drain()
        return self._stop

    def wait(self, seconds: float) -> None:
        """Wait for a signal (the end of a child is one), at most `seconds`."""
        self._poll.poll(max(0.0, seconds) * 1000)
        self._drain()

    def wait_until(self, moment: float) -> None:
        """Wait for a signal, at most until `moment` on the monotonic clock."""
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


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing; the interpreter writes only signals with a handler to the pipe."""
