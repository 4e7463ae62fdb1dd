"""One process at a time, on this node or any other that sees the same directory.

The kernel's lock says at once when whoever had the turn on this host has died. Some network file systems lock
nothing, or only within one host, so the file tells as well who has the turn, and counts: from another host
somebody counts as gone only when the count stood still while we were looking. No two clocks are compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Callable

from outlast.node.locks import lock, unlock

#: Seconds between two counts.
BEAT = 10.0
#: From another host: a count that stands still this long has nobody behind it.
SILENT = 60.0
_LARGEST = 4096


@dataclass(frozen=True)
class LockHolder:
    """Who has the turn, as the file tells; empty fields where nobody does."""

    host: str = ""
    pid: int = 0
    mark: str = ""
    count: int = 0

    def __str__(self) -> str:
        return "%s (process %d)" % (self.host, self.pid) if self.host else ""


class FetchLock:
    """A descriptor is open from the first `take` to `release`; it is not inherited by programs."""

    def __init__(
        self, path: str, host: str = "", clock: Callable[[], float] = time.monotonic, silent: float = SILENT
    ) -> None:
        self.path = path
        self._host = host or socket.gethostname()
        self._clock = clock
        self._silent = silent
        self._descriptor: int | None = None
        #: What tells us from others in the file.
        self.mark = os.urandom(8).hex()
        self._count = 0
        self._beaten = 0.0
        self._seen: tuple[LockHolder, float] | None = None

    def take(self) -> bool:
        """True: it is ours. False: somebody has it. To be asked again; it never waits. Raises OSError."""
        descriptor = self._open()
        try:
            locked = lock(descriptor)
        except BlockingIOError:
            self.silence()  # begin to count how long nothing is heard
            return False
        holder = self.holder()
        died_here = locked and holder.host == self._host
        if not holder.mark or died_here or self.silence() >= self._silent:
            self._count += 1
            self._tell()
            return locked or self.holder().mark == self.mark
        if locked:
            unlock(descriptor)
        return False

    def silence(self) -> float:
        """Seconds for which whoever has the turn has not counted, as far as we have looked."""
        holder, now = self.holder(), self._clock()
        if self._seen is None or self._seen[0] != holder:
            self._seen = (holder, now)
        return now - self._seen[1]

    def beat(self) -> bool:
        """Count, if it is time; False when the turn has gone to somebody else meanwhile.

        A process that was stopped for a while finds out here, before it writes another byte.
        """
        now = self._clock()
        if now - self._beaten < BEAT:
            return True
        if self.holder().mark != self.mark:
            return False
        self._count += 1
        self._tell()
        return True

    def release(self) -> None:
        if self._descriptor is None:
            return
        if self._beaten and self.holder().mark == self.mark:
            with contextlib.suppress(OSError):  # the next one then waits a little longer
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None

    def holder(self) -> LockHolder:
        """By opening the file anew: that is when a network file system looks at the server's copy."""
        try:
            with open(self.path, "rb") as file:
                raw = json.loads(file.read(_LARGEST))
            return LockHolder(str(raw["host"]), int(raw["pid"]), str(raw["mark"]), int(raw["count"]))
        except (OSError, ValueError, TypeError, KeyError):
            return LockHolder()

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(self.path, flags, 0o644)
        return self._descriptor

    def _tell(self) -> None:
        content = {"host": self._host, "pid": os.getpid(), "mark": self.mark, "count": self._count}
        # Of one length, so that no reader finds the end of an older one behind it.
        data = json.dumps(content).encode("ascii", "replace").ljust(512)
        os.pwrite(self._open(), data, 0)
        self._beaten = self._clock()
