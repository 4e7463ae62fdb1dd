"""Markers that show that a job is using a cache entry. An entry with a live marker is never removed.

A marker is a file named after host and process, which the job touches while it lives. A marker of this host
is live while its process lives; one of another host or container is live if it was touched recently, by the
file system's own clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

#: Seconds between two touches of a marker.
TOUCH = 60.0
#: Seconds without a touch after which a marker of another host is stale.
STALE = 900.0


class UseMarker:
    """A marker of this process in `directory`, from construction until `remove`."""

    def __init__(self, directory: str) -> None:
        """Raises OSError if the entry has just been removed."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        self._path = os.path.join(directory, f"{_host_id()}.{os.getpid()}.{os.urandom(4).hex()}")
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        self._touched = time.monotonic()

    def touch(self) -> None:
        """Keep the marker live. Cheap to call often: it touches the file once a minute."""
        now = time.monotonic()
        if now - self._touched >= TOUCH:
            self._touched = now
            with contextlib.suppress(OSError):  # the disk may be full; the marker stays live for a while
                os.utime(self._path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # it becomes stale, and stale markers are ignored
            os.unlink(self._path)


def is_in_use(directory: str, now: float) -> bool:
    """Return True if `directory` has a live marker, or cannot be read.

    `now` is the time of the file system, see `file_system_time`.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(_is_live(directory, name, now) for name in names)


def _is_live(directory: str, name: str, now: float) -> bool:
    host, _, pid = name.rpartition(".")[0].rpartition(".")
    if host == _host_id() and pid.isdigit():
        return os.path.isdir(f"/proc/{pid}") if os.path.isdir("/proc/self") else True
    try:
        return now - os.lstat(os.path.join(directory, name)).st_mtime < STALE
    except OSError:
        return False


def _host_id() -> str:
    """Return a name for the scope in which process ids are unique: containers of one host have their own."""
    return f"{socket.gethostname()}-{_namespace()}"


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "unknown"  # a system without PID namespaces


def file_system_time(directory: str) -> float:
    """Return the current time by the clock of the file system that holds `directory`."""
    os.utime(directory)  # unlike creating a file, this works on a full disk
    return os.lstat(directory).st_mtime
