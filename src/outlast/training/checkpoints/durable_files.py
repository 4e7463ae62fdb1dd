"""Writing, reading and removing files so that a kill at any moment leaves whole ones behind.

Everything goes through `os` and descriptors: each call that can fail is one a test can make fail.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from contextlib import contextmanager
from typing import Iterator

from outlast.training.errors import Damaged

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


@contextmanager
def descriptor(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | _CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def regular_file(path: str) -> Iterator[int]:
    """A descriptor for reading; Damaged if the file is missing or is no regular file.

    A pipe would make the reader wait for ever, hence O_NONBLOCK; it means nothing to a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged("%s is missing" % os.path.basename(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Damaged("%s is not a file" % os.path.basename(path))
        yield fd
    finally:
        os.close(fd)


#: What a disk reads by itself has to begin and end with a multiple of this.
_SECTOR = 4096
#: Below this, memory of the system's own is as fast.
_WORTH_IT = 4 << 20
#: So much at a time: enough for many disks at once.
_AT_ONCE = 64 << 20


def write_past_cache(fd: int, content: memoryview) -> None:
    """Like `write_all`; where the file system can, it reads large content from where it lies.

    The system would copy it into memory of its own first, which takes time and drives out what the training
    reads again and again.
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
                    break  # the disk is full, or nearly
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, plain)
    write_all(fd, content)


def write_all(fd: int, content: memoryview) -> None:
    while len(content):
        content = content[os.write(fd, content) :]


def read_into(fd: int, target: memoryview, offset: int) -> None:
    """Fill `target` with what the file has at the offset; Damaged if it ends before."""
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
    """A new file, durable when this returns."""
    with descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_all(fd, memoryview(content))
        os.fsync(fd)


def read_file(path: str) -> bytes:
    with regular_file(path) as fd:
        return read_at(fd, 0, os.fstat(fd).st_size)


def sync_directory(path: str) -> None:
    with descriptor(path, os.O_RDONLY) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            # Some network file systems know no such thing as syncing a directory; the files are safe.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                raise


def remove(path: str) -> None:
    """A file, a link or a directory with all that is in it; no error if it is not there."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
