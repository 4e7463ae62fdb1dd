"""Work done behind the training's back: one piece at a time, in order, and never unheard when it fails."""

from __future__ import annotations

import os
import threading
from typing import Callable


class BackgroundWorker:
    """`begin` gives a piece of work to a thread; the next piece's thread waits for it.

    The threads are no daemons: the interpreter ends only when they have. A forked child has none of them and
    none of their results.
    """

    def __init__(self) -> None:
        self._last: _Task | None = None
        self._failure: BaseException | None = None

    def begin(self, work: Callable[[], None], after: Callable[[], None]) -> None:
        """Do `work` and then `after`; `wait_for_work` waits for the first of the two."""
        self._last = _Task(self._last, work, after, self._failed)

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def wait_for_work(self) -> None:
        if self._last is not None:
            self._last.worked.wait()

    def wait_for_all(self) -> None:
        if self._last is not None:
            self._last.ended.wait()

    def raise_failure(self, kind: type[BaseException] = BaseException) -> None:
        """What went wrong since the last call, once; `kind` leaves other failures for later."""
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
        if start(self._do) is None:
            self._do()  # no thread can be had: the caller waits

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
            # Whatever it is, it is the training's to hear.
            self._failed(error)
        finally:
            self.ended.set()


# Threads that help, and are done without where none can be had.
#: For work that all cores can share: more of them gain little, and a node has other processes.
MOST = max(1, min(4, os.cpu_count() or 1))


def start(work: Callable[[], None]) -> threading.Thread | None:
    """A thread that does it; None where none can be had, as at the end of the interpreter."""
    thread = threading.Thread(target=work, name="outlast")
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
