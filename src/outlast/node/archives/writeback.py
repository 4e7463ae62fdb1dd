"""Background syncing of files while more arrive; the system alone would leave most of it for the end."""

from __future__ import annotations

import os
import threading
from typing import Callable

from outlast.node.pulse import no_pulse

#: Bytes between two syncs. Each sync also makes the file system write its journal.
SYNC_INTERVAL = 64 << 20


class WriteBack:
    """Syncs the file system of a directory, all files at once.

    One descriptor of the directory is used throughout, because the kernel reports through it every write
    error since it was opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._unsynced = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def add(self, count: int) -> None:
        """Count `count` written bytes, and start a sync in the background if enough have come together."""
        self._unsynced += count
        if self._unsynced >= SYNC_INTERVAL and (self._thread is None or not self._thread.is_alive()):
            self._start_sync()

    def finish(self, pulse: Callable[[], None] = no_pulse) -> None:
        """Sync everything and wait for it. Raises OSError, also for errors of earlier syncs."""
        self._wait(pulse)
        self._start_sync()
        self._wait(pulse)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _start_sync(self) -> None:
        self._unsynced = 0
        # In a thread, because a sync may take any time and the pulse must continue. The thread has its own
        # descriptor, since ours may be closed before it is done.
        descriptor = os.dup(self._descriptor)
        self._thread = threading.Thread(target=self._sync, args=(descriptor,), name="sync", daemon=True)
        self._thread.start()

    def _wait(self, pulse: Callable[[], None]) -> None:
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.5)
            pulse()

    def _sync(self, descriptor: int) -> None:
        try:
            sync_file_system(descriptor, self._path)
        except OSError as error:
            self._error = self._error or error
        finally:
            os.close(descriptor)


def sync_file_system(descriptor: int, path: str) -> None:
    """Sync the file system that holds the open file `descriptor`, whose path is `path`. Raises OSError."""
    try:
        import ctypes

        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, OSError, AttributeError):
        os.sync()  # no ctypes, or a C library without syncfs()
        return
    if function(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
