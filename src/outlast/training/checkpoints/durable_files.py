"""File operations for checkpoints: writing, syncing, reading and removing.

All go through `os` and file descriptors, so that a test can make each call fail.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager
from typing import Iterator

from outlast.training.errors import Damaged

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


@contextmanager
def open_descriptor(path: str, flags: int) -> Iterator[int]:
    """Open a file and yield its descriptor; close it at the end. No file is created behind a link."""
    if flags & os.O_CREAT:
        flags |= os.O_NOFOLLOW
    fd = os.open(path, flags | _CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_regular_file(path: str) -> Iterator[int]:
    """Open a file for reading and yield its descriptor.

    Raises Damaged if it is missing, a link or not a regular file. O_NONBLOCK prevents waiting for ever on a
    pipe; it has no effect on regular files.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | _CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged("%s is missing" % os.path.basename(path)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Damaged("%s is a link" % os.path.basename(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Damaged("%s is not a file" % os.path.basename(path))
        yield fd
    finally:
        os.close(fd)


#: Direct writes must begin and end at a multiple of this.
_SECTOR = 4096
#: Minimum bytes for direct writes: below, the page cache is as fast.
_WORTH_IT = 4 << 20
#: Bytes per write: enough to keep many disks busy at once.
_AT_ONCE = 64 << 20


def write_direct(fd: int, content: memoryview) -> None:
    """Write like `write_all`, but large content without the page cache if the file system can.

    The page cache would cost a copy and evict data that the training reads again and again.
    """
    direct = getattr(os, "O_DIRECT", 0)
    whole = len(content) // _SECTOR * _SECTOR
    if direct and whole >= _WORTH_IT:
        plain = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, plain | direct)
            while whole:
                written = os.write(fd, content[: min(whole, _AT_ONCE)])
                content, whole = content[written:], whole - written
                if written % _SECTOR:
                    break  # the disk is (nearly) full
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, plain)
    write_all(fd, content)


def write_all(fd: int, content: memoryview) -> None:
    """Write all of `content`, with as many calls as needed."""
    while len(content):
        content = content[os.write(fd, content) :]


def read_into(fd: int, target: memoryview, offset: int) -> None:
    """Fill `target` with the file's bytes from `offset` on. Raises Damaged if the file ends before."""
    while len(target):
        count = os.preadv(fd, [target], offset)
        if count == 0:
            raise Damaged("it ends too early")
        target, offset = target[count:], offset + count


def read_at(fd: int, offset: int, length: int) -> bytes:
    content = bytearray(length)
    read_into(fd, memoryview(content), offset)
    return bytes(content)


def write_file(path: str, content: bytes) -> None:
    """Create a file, durable when this returns."""
    with open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_all(fd, memoryview(content))
        os.fsync(fd)


def read_file(path: str, most: int) -> bytes:
    """Return the content of a file. Raises Damaged if it has more than `most` bytes, and OSError."""
    with open_regular_file(path) as fd:
        size = os.fstat(fd).st_size
        if size > most:
            raise Damaged("%s has more than %d bytes" % (os.path.basename(path), most))
        return read_at(fd, 0, size)


def sync_directory(path: str) -> None:
    """Sync a directory, so that names in it are durable."""
    with open_descriptor(path, os.O_RDONLY) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            # Some network file systems cannot sync a directory; the files are safe.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                raise
