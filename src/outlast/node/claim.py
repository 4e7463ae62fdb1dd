"""Who may work on an attempt: whoever creates its claim file first.

A node program claims its attempt before it touches anything. The controller fences an attempt by creating the
same file itself; a job that starts later, however late, then finds the file and leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass

from outlast.node.event_log import print_stderr


@dataclass(frozen=True)
class Claim:
    """What a claim file says. One caught between its creation and its first byte has empty fields."""

    token: str = ""
    job: str = ""
    host: str = ""
    pid: int = 0
    at: float = 0.0
    fenced: bool = False
    by: str = ""


def acquire(path: str, token: str, job: str, host: str) -> bool:
    """True: the attempt is ours. False: somebody else has it. OSError: nobody could tell."""
    content = {"token": token, "job": job, "host": host, "pid": os.getpid(), "at": time.time()}
    return _create(path, content)


def fence(path: str, by: str) -> bool:
    """True: no job can claim this attempt any more. False: a node program has claimed it already.

    Fencing what is fenced is True again, so that a controller may repeat it after a crash.
    """
    if _create(path, {"fenced": True, "by": by, "at": time.time()}):
        return True
    holder = read(path)
    return holder is not None and holder.fenced


def read(path: str) -> Claim | None:
    """None: nobody holds the attempt yet."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            raw = json.loads(file.read(65536))
    except FileNotFoundError:
        return None
    except ValueError:
        return Claim()
    if not isinstance(raw, dict):
        return Claim()
    pid, at = raw.get("pid"), raw.get("at")
    return Claim(
        token=str(raw.get("token", "")),
        job=str(raw.get("job", "")),
        host=str(raw.get("host", "")),
        pid=pid if isinstance(pid, int) else 0,
        at=float(at) if isinstance(at, (int, float)) else 0.0,
        fenced=raw.get("fenced") is True,
        by=str(raw.get("by", "")),
    )


def _create(path: str, content: dict[str, object]) -> bool:
    """Create `path` with its content in one step where the file system has hard links, else in two."""
    data = json.dumps(content).encode() + b"\n"
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        _fill(_new(temporary), data)
        os.link(temporary, path)
        return True
    except FileExistsError:
        # On NFS a repeated request may find the link that its first try has made.
        return os.stat(temporary).st_nlink == 2
    except OSError:
        # No hard links here, or no space for the content: the name alone is a claim as well.
        return _create_by_name(path, data)
    finally:
        with contextlib.suppress(OSError):  # it is only litter
            os.unlink(temporary)


def _create_by_name(path: str, data: bytes) -> bool:
    try:
        descriptor = _new(path)
    except FileExistsError:
        return False
    try:
        _fill(descriptor, data)
    except OSError as error:
        print_stderr(f"{path} could not be written in full: {error.strerror}")
    return True


def _new(path: str) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)


def _fill(descriptor: int, data: bytes) -> None:
    try:
        # Not fsynced: others must find it while the job lives, and a power cut ends the job as well.
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
