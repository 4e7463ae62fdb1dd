"""The claim on an attempt: the job that creates the claim file first may run the attempt.

A node program claims its attempt before it touches anything. The controller fences an attempt by creating the
same file itself; a job that starts later, however late, then finds the file and exits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from dataclasses import dataclass

from outlast.node.event_log import print_stderr
from outlast.untrusted_files import parse_json, read_file

#: Errors of opening a path that exists but is not a file, or must not be read.
_NO_FILE = (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EFBIG)
_MAX_BYTES = 65536


@dataclass(frozen=True)
class Claim:
    """The content of a claim file. All fields are empty if the file has been created but not written yet."""

    token: str = ""
    job: str = ""
    host: str = ""
    pid: int = 0
    at: float = 0.0
    fenced: bool = False
    by: str = ""


def acquire(path: str, token: str, job: str, host: str) -> bool:
    """Claim the attempt. Return False if another job or a fence holds it. Raises OSError."""
    content = {"token": token, "job": job, "host": host, "pid": os.getpid(), "at": time.time()}
    return _create(path, content)


def fence(path: str, by: str) -> bool:
    """Prevent every later claim. Return False if a node program has already claimed the attempt.

    Return True if it is fenced already: a controller may repeat the call after a crash. Raises OSError.
    """
    if _create(path, {"fenced": True, "by": by, "at": time.time()}):
        return True
    holder = read(path)
    return holder is not None and holder.fenced


def read(path: str) -> Claim | None:
    """Return the claim, or None if the attempt is not claimed. Raises OSError if that cannot be known now.

    The name alone is a claim: if it cannot be read as one, all fields are empty.
    """
    try:
        raw = parse_json(read_file(path, _MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _NO_FILE and os.path.lexists(path):
            return Claim()
        raise
    except ValueError:
        return Claim()
    if not isinstance(raw, dict):
        return Claim()
    pid, at = raw.get("pid"), raw.get("at")
    return Claim(
        token=_text(raw.get("token")),
        job=_text(raw.get("job")),
        host=_text(raw.get("host")),
        pid=pid if isinstance(pid, int) else 0,
        at=float(at) if isinstance(at, (int, float)) and abs(at) < 2**53 else 0.0,
        fenced=raw.get("fenced") is True,
        by=_text(raw.get("by")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _create(path: str, content: dict[str, object]) -> bool:
    """Create `path` with its content, in one step if the file system has hard links. False: it exists."""
    data = json.dumps(content).encode() + b"\n"
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        _write_and_close(_open_new(temporary), data)
        os.link(temporary, path)
        return True
    except FileExistsError:
        # On NFS a repeated request may find the link that the first one has made.
        return os.stat(temporary).st_nlink == 2
    except OSError:
        # No hard links, or no space for the content: the name alone is a claim too.
        return _create_by_name(path, data)
    finally:
        with contextlib.suppress(OSError):  # it only wastes a little space
            os.unlink(temporary)


def _create_by_name(path: str, data: bytes) -> bool:
    try:
        descriptor = _open_new(path)
    except FileExistsError:
        return False
    try:
        _write_and_close(descriptor, data)
    except OSError as error:
        print_stderr(f"{path} could not be written completely: {error.strerror}")
    return True


def _open_new(path: str) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)


def _write_and_close(descriptor: int, data: bytes) -> None:
    try:
        # No fsync: others need the file only while the job lives, and a power failure ends the job too.
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
