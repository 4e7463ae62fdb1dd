"""A background worker: runs tasks in threads, one at a time and in order, and reports their failures."""

from __future__ import annotations

import os
import threading
from typing import Callable


class BackgroundWorker:
    """A queue of tasks, each in its own thread, which waits for the one before it.

    The threads are not daemons: the interpreter exits only after they end. A forked child has none of the
    threads and none of their results.
    """

    def __init__(self) -> None:
        self._last: _Task | None = None
        self._failure: BaseException | None = None

    def submit(self, work: Callable[[], None], after: Callable[[], None]) -> None:
        """Run `work` and then `after` in the background. `wait_for_work` waits for `work` only."""
        self._last = _Task(self._last, work, after, self._failed)

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def wait_for_work(self) -> None:
        """Wait until the `work` of the newest task has ended; its `after` may still run."""
        if self._last is not None:
            self._last.worked.wait()

    def wait_for_all(self) -> None:
        """Wait until the newest task has ended, with its `after`."""
        if self._last is not None:
            self._last.ended.wait()

    def raise_failure(self, kind: type[BaseException] = BaseException) -> None:
        """Raise the newest failure since the last call, once.

        With `kind`, a failure of another type is kept for a later call.
        """
        failure = self._failure
        if isinstance(failure, kind):
            self._failure = None
            raise failure


class _Task:
    def __init__(
        self,
        before: _Task | None,
        work: Callable[[], None],
        after: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.worked, self.ended = threading.Event(), threading.Event()
        self._before, self._work, self._after, self._failed = before, work, after, failed
        if start_thread(self._do) is None:
            self._do()  # no thread can be started: run it in the caller's

    def _do(self) -> None:
        try:
            if self._before is not None:
                self._before.ended.wait()
                self._before = None
            try:
                self._work()
            finally:
                self.worked.set()
            self._after()
        except BaseException as error:
            # Any exception must reach the training script.
            self._failed(error)
        finally:
            self.ended.set()


#: For work that all cores can share: more of them gain little, and a node has other processes.
MAX_THREADS = max(1, min(4, os.cpu_count() or 1))


def start_thread(work: Callable[[], None]) -> threading.Thread | None:
    """Start a thread that runs `work`. Return None if no thread can be started, as at interpreter exit."""
    thread = threading.Thread(target=work, name="outlast")
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
