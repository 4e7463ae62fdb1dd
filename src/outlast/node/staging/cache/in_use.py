"""Marks that say: a job is using this. Nothing that has one is ever removed.

A mark is a file named after host and process, touched as long as the job lives. One of this host counts while
its process lives, one of another host or container as long as it was touched not long ago by the file
system's own clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

#: Seconds between two touches, and after how many without one a mark of another host is litter.
TOUCH = 60.0
STALE = 900.0


class UseMarker:
    def __init__(self, directory: str) -> None:
        """Raises OSError when the entry has just gone."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        self._path = os.path.join(directory, f"{_here()}.{os.getpid()}.{os.urandom(4).hex()}")
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        self._touched = time.monotonic()

    def touch(self) -> None:
        now = time.monotonic()
        if now - self._touched >= TOUCH:
            self._touched = now
            with contextlib.suppress(OSError):  # the disk may be full: what is marked stays marked a while
                os.utime(self._path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # it becomes litter, which is known as such
            os.unlink(self._path)


def in_use(directory: str, now: float) -> bool:
    """`now` by the clock of the file system. What cannot be told counts as use."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(_counts(directory, name, now) for name in names)


def _counts(directory: str, name: str, now: float) -> bool:
    host, _, rest = name.rpartition(".")[0].rpartition(".")
    if host == _here() and rest.isdigit():
        return os.path.isdir(f"/proc/{rest}") if os.path.isdir("/proc/self") else True
    try:
        return now - os.lstat(os.path.join(directory, name)).st_mtime < STALE
    except OSError:
        return False


def _here() -> str:
    """Where a number means the same process to all: containers of one host have numbers of their own."""
    return f"{socket.gethostname()}-{_namespace()}"


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "unknown"  # a kernel or system without such a thing


def clock_of(directory: str) -> float:
    """What time it is for the file system that holds `directory`, whose clock gives files their times."""
    os.utime(directory)  # unlike a new file it takes no space, of which there may be none
    return os.lstat(directory).st_mtime
