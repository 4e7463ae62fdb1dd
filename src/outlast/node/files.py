"""Functions to read, copy and link files that may be large, and nothing else, and to remove directories.

`pulse` is called for every block and every file. It may raise; the work then stops where it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import IO, BinaryIO, Callable, Iterator

from outlast.node.pulse import no_pulse

_BLOCK_BYTES = 1 << 20
#: Errors of a file system that cannot make this hard link; a copy may still work.
_NO_LINK = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS)


def read_blocks(file: IO[bytes], pulse: Callable[[], None] = no_pulse) -> Iterator[bytes]:
    """Yield the rest of `file` in blocks; call the pulse before each read, so also for an empty file."""
    while True:
        pulse()
        block = file.read(_BLOCK_BYTES)
        if not block:
            return
        yield block


def open_file(path: str) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else, instead of waiting for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb")


def copy_file(source: str, target: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Copy a regular file with its mode and times. If that fails, remove the partial copy."""
    try:
        with open_file(source) as original, open(target, "wb") as copy:
            for block in read_blocks(original, pulse):
                copy.write(block)
        shutil.copystat(source, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            os.unlink(target)
        raise


def link_or_copy(source: str, target: str) -> None:
    """Give a regular file a second name, or copy it if the file system cannot link it. Raises OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy_file(source, target)


def copy_tree(source: str, target: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Copy files, directories and symbolic links, and nothing else.

    A file that vanishes meanwhile is skipped: it was a temporary file of a process that is still alive.
    """
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        pulse()
        path, goal = os.path.join(source, name), os.path.join(target, name)
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                copy_tree(path, goal, pulse)
            elif stat.S_ISREG(mode):
                copy_file(path, goal, pulse)
            elif stat.S_ISLNK(mode):
                shutil.copy2(path, goal, follow_symlinks=False)


def remove_tree(path: str) -> None:
    """Remove a directory and everything in it, however deep it is nested. Raises OSError.

    Each subdirectory is moved up to the top before its parent is removed, so that nothing recurses. Links are
    removed and never followed.
    """
    top = _open_directory(path, None)
    try:
        names = _empty(top)
        while names:
            for name in names:
                inner = _open_directory(name, top)
                try:
                    for below in _empty(inner):
                        target = f".{os.urandom(8).hex()}.tmp"
                        os.rename(below, target, src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
            names = _empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


def _open_directory(name: str, parent: int | None) -> int:
    """Make a directory readable and writable, and return a descriptor of it."""
    if os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(name, stat.S_IRWXU, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _empty(descriptor: int) -> list[str]:
    """Remove everything but directories; return the names of those, with modes that allow to move them."""
    with os.scandir(descriptor) as entries:
        found = list(entries)
    names = []
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=descriptor)
            continue
        if entry.stat(follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(entry.name, stat.S_IRWXU, dir_fd=descriptor)
        names.append(entry.name)
    return names


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; the files themselves are durable.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
