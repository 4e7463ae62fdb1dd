"""A lock on the fetch of one cache entry, between processes on all nodes that share the directory.

The kernel's lock (flock) shows at once that a holder on this host has died. Some network file systems do not
lock at all, or only within one host, so the file also names the holder and has a counter that the holder
increases. A holder on another host is considered dead only if its counter did not change while this process
was watching. Clocks of different hosts are never compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Callable

from outlast.node.locks import try_lock, unlock
from outlast.untrusted_files import parse_json, read_file

#: Seconds between two refreshes.
REFRESH_INTERVAL = 10.0
#: Seconds without a refresh after which a holder on another host is considered dead.
STALE_AFTER = 60.0
_MAX_BYTES = 4096


@dataclass(frozen=True)
class LockHolder:
    """The holder that the lock file names; all fields are empty if nobody holds the lock."""

    host: str = ""
    pid: int = 0
    owner_id: str = ""
    count: int = 0

    def __str__(self) -> str:
        return "%s (process %d)" % (self.host, self.pid) if self.host else ""


class FetchLock:
    """A lock in the file `path`. Programs that this process starts do not inherit it.

    A descriptor is open from the first `acquire` to `release`.
    """

    def __init__(
        self,
        path: str,
        host: str = "",
        clock: Callable[[], float] = time.monotonic,
        stale_after: float = STALE_AFTER,
    ) -> None:
        self.path = path
        self._host = host or socket.gethostname()
        self._clock = clock
        self._stale_after = stale_after
        self._descriptor: int | None = None
        #: Distinguishes this lock object from all others in the file.
        self.owner_id = os.urandom(8).hex()
        self._count = 0
        self._refreshed = 0.0
        self._seen: tuple[LockHolder, float] | None = None

    def acquire(self) -> bool:
        """Acquire the lock without waiting. Return False if another process holds it. Raises OSError."""
        descriptor = self._open()
        try:
            locked = try_lock(descriptor)
        except BlockingIOError:
            self._observe()  # from now on it is known how long the holder has not refreshed
            return False
        holder = self.holder()
        died_here = locked and holder.host == self._host
        if not holder.owner_id or died_here or self.is_stale(self._stale_after):
            self._count += 1
            self._write_holder()
            return locked or self.holder().owner_id == self.owner_id
        if locked:
            unlock(descriptor)
        return False

    def is_stale(self, seconds: float) -> bool:
        """Return True if this process has watched the lock for `seconds` without seeing a refresh."""
        return self._observe() >= seconds

    def refresh(self) -> bool:
        """Increase the counter if it is due. Return False if another process has taken over the lock.

        A process that was suspended learns of the takeover here, before it writes another byte.
        """
        now = self._clock()
        if now - self._refreshed < REFRESH_INTERVAL:
            return True
        if self.holder().owner_id != self.owner_id:
            return False
        self._count += 1
        self._write_holder()
        return True

    def release(self) -> None:
        """Release the lock if this process holds it, and close the file. Safe to call twice."""
        if self._descriptor is None:
            return
        if self._refreshed and self.holder().owner_id == self.owner_id:
            with contextlib.suppress(OSError):  # the next process then waits a little longer
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None

    def holder(self) -> LockHolder:
        """Return the holder named in the file; empty if there is none or the file cannot be read."""
        # The file is opened anew: that is when a network file system asks the server for changes.
        try:
            raw = parse_json(read_file(self.path, _MAX_BYTES))
            return LockHolder(str(raw["host"]), int(raw["pid"]), str(raw["mark"]), int(raw["count"]))
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            return LockHolder()

    def _observe(self) -> float:
        """Return for how many seconds holder and counter have been seen unchanged; 0 at the first call."""
        holder, now = self.holder(), self._clock()
        if self._seen is None or self._seen[0] != holder:
            self._seen = (holder, now)
        return now - self._seen[1]

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(self.path, flags, 0o644)
        return self._descriptor

    def _write_holder(self) -> None:
        content = {"host": self._host, "pid": os.getpid(), "mark": self.owner_id, "count": self._count}
        # Padded to a fixed length, so that no reader sees the tail of a longer, older record.
        data = json.dumps(content).encode("ascii", "replace").ljust(512)
        os.pwrite(self._open(), data, 0)
        self._refreshed = self._clock()
