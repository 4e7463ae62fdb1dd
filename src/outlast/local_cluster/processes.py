"""What the kernel knows about processes: identity, children, and how to signal the one that was meant."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's. Not inherited by a fork."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "prctl(PR_SET_CHILD_SUBREAPER): " + os.strerror(number))


def boot_id() -> str:
    """Changes with every boot: process ids and the monotonic clock are comparable within one only."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
    try:
        with open("/proc/%d/stat" % pid, "rb", buffering=0) as file:
            text = file.read(4096)
    except OSError:
        return None  # gone, or going
    return text[text.rindex(b")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with the id it names a process for ever.

    None if it is gone. A zombie counts as gone: it runs no more.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, ticks: int) -> bool:
    return start_ticks(pid) == ticks


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):  # noqa: PTH208 - names are wanted, not paths
            with open("/proc/%d/task/%s/children" % (pid, task), "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if not Path("/proc/self/task/%d/children" % os.getpid()).exists():
            return _children_by_scan(pid)  # a kernel built without CONFIG_PROC_CHILDREN
    except ProcessLookupError:
        return found  # it ended while it was being read
    return found


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def _children_by_scan(parent: int) -> list[int]:
    wanted = b"%d" % parent
    return [pid for pid in _all_pids() if (fields := _stat(pid)) is not None and fields[1] == wanted]


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, parents first."""
    found: list[int] = []
    fresh = children_of(pid)
    while fresh:
        found += fresh
        fresh = [child for parent in fresh for child in children_of(parent) if child not in found]
    return found


def in_session(session: int) -> list[int]:
    """Everything that still runs in the session of a job's leader."""
    wanted = b"%d" % session
    return [
        pid
        for pid in _all_pids()
        if (fields := _stat(pid)) is not None and fields[3] == wanted and fields[0] not in (b"Z", b"X")
    ]


def send(pid: int, ticks: int, number: int) -> bool:
    """Signal exactly the process that started at `ticks`; False if it is gone.

    For processes that are not our children: their id may have been given to a stranger.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or sandbox without pidfd: a short race is left
        if not is_alive(pid, ticks):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True
    try:
        if not is_alive(pid, ticks):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def kill_each(pids: list[int]) -> None:
    for pid in pids:
        ticks = start_ticks(pid)
        if ticks is not None:
            with contextlib.suppress(PermissionError):  # a setuid program: not ours to end
                send(pid, ticks, signal.SIGKILL)
