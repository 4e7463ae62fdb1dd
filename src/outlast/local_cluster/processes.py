"""Processes: identity, children, and signals that never reach a stranger with a reused process id."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from outlast.node import process_cleanup


def become_subreaper() -> None:
    """Make orphans below this process its children instead of init's. A fork does not inherit this.

    Raises OSError if the kernel refuses.
    """
    if not process_cleanup.become_subreaper():
        raise OSError("this system cannot make a process a child subreaper (prctl)")


def boot_id() -> str:
    """Return an id of the current boot; process ids and the monotonic clock are comparable only within it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the state on; None if the process is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb", buffering=0) as file:
            text = file.read(4096)
    except OSError:
        return None
    # The name before the state may contain spaces and parentheses.
    return text[text.rindex(b")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it is gone or a zombie.

    Together with the process id this identifies a process uniquely.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, ticks: int) -> bool:
    """Return True if the process that started at `ticks` still runs."""
    return start_ticks(pid) == ticks


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of a process, zombies included."""
    found: list[int] = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):  # noqa: PTH208 - names, not paths
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
    number = b"%d" % parent
    return [pid for pid in _all_pids() if (fields := _stat(pid)) is not None and fields[1] == number]


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children and so on, parents first."""
    found: list[int] = []
    fresh = children_of(pid)
    while fresh:
        found += fresh
        fresh = [child for parent in fresh for child in children_of(parent) if child not in found]
    return found


def in_session(session: int) -> list[int]:
    """Return the processes that still run in the session of a job's leader."""
    number = b"%d" % session
    return [
        pid
        for pid in _all_pids()
        if (fields := _stat(pid)) is not None and fields[3] == number and fields[0] not in (b"Z", b"X")
    ]


def send(pid: int, ticks: int, number: int) -> bool:
    """Send a signal to the process that started at `ticks`; return False if it is gone.

    For processes that are not children of this one: their id may belong to another process by now.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or sandbox without pidfd: a short race remains
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
    """Kill the processes that still run and belong to this user."""
    for pid in pids:
        ticks = start_ticks(pid)
        if ticks is not None:
            with contextlib.suppress(PermissionError):  # a setuid program
                send(pid, ticks, signal.SIGKILL)
