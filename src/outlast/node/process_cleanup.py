"""Cleanup of processes: nothing that the training started outlives its attempt.

On Linux the node program is a child subreaper: a process whose parent died, even in a session of its own,
becomes a child of the node program instead of init, so that `waitpid` finds all of them. On other systems
only the process group and the token in the environment identify them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Seconds after SIGKILL until a process counts as stuck in the kernel (a dead network file system).
KILL_TIMEOUT = 5.0


def _find_prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        function = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None  # a Python without ctypes: only the weaker methods below are available

    def call(option: int, value: int) -> int:
        return int(function(option, value, 0, 0, 0))

    return call


_prctl = _find_prctl()


def become_subreaper() -> bool:
    """Make this process the parent of its orphaned descendants. Return False if the system cannot do that."""
    return _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, or now if it is dead. Call it before exec."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_descendants(token: str, timeout: float = KILL_TIMEOUT) -> list[int]:
    """Kill and reap all descendants of this process. Return the pids that survived for `timeout` seconds.

    The caller must have no children that are to survive.
    """
    until = time.monotonic() + timeout
    pause = 0.001
    while True:
        if not _reap_ended():
            break
        for pid in descendants(os.getpid()):
            _kill(pid)
        if time.monotonic() >= until:
            return descendants(os.getpid())
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    if _prctl is None:
        kill_by_token(token)
    return []


def _reap_ended() -> bool:
    """Reap every child that has ended. Return False if there is no child left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants(ancestor: int) -> list[int]:
    """Return the pids of all descendants in /proc that are not zombies; empty on systems without /proc."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in parentheses may contain spaces and parentheses.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has just ended
        children.setdefault(int(parent), []).append(pid)
        if state in b"ZX":
            zombies.add(pid)
    found: list[int] = []
    pending = [ancestor]
    while pending:
        below = children.get(pending.pop(), [])
        pending.extend(below)
        found.extend(pid for pid in below if pid not in zombies)
    return found


def kill_by_token(token: str, rounds: int = 20) -> list[int]:
    """Kill this user's processes that have the attempt's token in their environment; return their pids.

    This is for attempts whose node program is gone. A process may fork meanwhile: repeat until none is left.
    """
    killed: list[int] = []
    pause = 0.001
    for _ in range(rounds):
        found = _pids_with(b"OUTLAST_TOKEN=" + os.fsencode(token))
        if not found:
            break
        for pid in found:
            if _kill(pid) and pid not in killed:
                killed.append(pid)
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return killed


def _pids_with(entry: bytes) -> list[int]:
    found = []
    user, own = os.getuid(), os.getpid()
    for pid in _pids():
        if pid == own:
            continue
        try:
            if os.stat(f"/proc/{pid}").st_uid != user:
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if entry in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue  # it has just ended, or is not readable
    return found


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True
