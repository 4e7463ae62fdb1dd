"""Files put on disk while more of them arrive: the system alone would leave most of that for the end."""

from __future__ import annotations

import os
import threading
from typing import Callable

from outlast.node.pulse import silent

#: Bytes that are worth a round. Each makes the file system write its journal, too.
EVERY = 64 << 20


class WriteBack:
    """For the file system of a directory, all files at once.

    Always through the same open directory: it is told of everything that could not be written since it was
    opened, however long ago.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def wrote(self, count: int) -> None:
        """So many bytes more are to be put on disk; nobody waits for it."""
        self._waiting += count
        if self._waiting >= EVERY and (self._thread is None or not self._thread.is_alive()):
            self._begin()

    def finish(self, pulse: Callable[[], None] = silent) -> None:
        """Everything is on disk when this returns. Raises OSError, also for what went wrong before."""
        self._wait(pulse)
        self._begin()
        self._wait(pulse)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin(self) -> None:
        self._waiting = 0
        # A thread: nobody can say how long it takes, and the job must be heard of meanwhile. It has a
        # descriptor of its own, since ours may be closed before it is done.
        own = os.dup(self._descriptor)
        self._thread = threading.Thread(target=self._work, args=(own,), name="sync", daemon=True)
        self._thread.start()

    def _wait(self, pulse: Callable[[], None]) -> None:
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.5)
            pulse()

    def _work(self, descriptor: int) -> None:
        try:
            sync_file_system(descriptor, self._path)
        except OSError as error:
            self._error = self._error or error
        finally:
            os.close(descriptor)


def sync_file_system(descriptor: int, path: str) -> None:
    """The one that an open file, called `path`, is on. Raises OSError."""
    try:
        import ctypes

        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, OSError, AttributeError):
        os.sync()  # a Python or a C library that has nothing better
        return
    if function(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
