"""Nothing that a training started outlives its attempt.

On Linux the node program is a child subreaper: a process whose parent died, even one in a session of its own,
becomes our child instead of init's, so `waitpid` knows of all of them. Elsewhere the process group and the
token in the environment are all there is to go by.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: A process that survives SIGKILL this long hangs in the kernel (a dead network file system).
KILL_TIMEOUT = 5.0


def _find_prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        function = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None  # a Python without ctypes: the weaker means below remain

    def call(option: int, value: int) -> int:
        return int(function(option, value, 0, 0, 0))

    return call


_prctl = _find_prctl()


def become_subreaper() -> bool:
    return _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def die_with_parent(parent: int) -> None:
    """For a child between fork and exec: SIGKILL comes when the parent dies, or now if it died already."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def end_descendants(token: str, patience: float = KILL_TIMEOUT) -> list[int]:
    """Kill whatever is still below this process, reap it, and return the pids that would not die.

    The caller must have no children of its own that are to live on.
    """
    until = time.monotonic() + patience
    pause = 0.001
    while True:
        if not _reap_what_ended():
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


def _reap_what_ended() -> bool:
    """False: there is no child left at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants(ancestor: int) -> list[int]:
    """All processes below `ancestor` that are not zombies, as far as /proc tells."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in parentheses may itself hold spaces and parentheses.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended while we looked
        children.setdefault(int(parent), []).append(pid)
        if state in b"ZX":
            zombies.add(pid)
    found: list[int] = []
    ahead = [ancestor]
    while ahead:
        below = children.get(ahead.pop(), [])
        ahead.extend(below)
        found.extend(pid for pid in below if pid not in zombies)
    return found


def kill_by_token(token: str, rounds: int = 20) -> list[int]:
    """Kill this user's processes that carry the attempt's token in their environment; their pids.

    For attempts whose node program is gone. A process may fork while we look, so look until none is left.
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
            continue  # it ended while we looked, or is not ours to look into
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
