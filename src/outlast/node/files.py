"""Reading and copying files that may be large, block by block, and never anything that is not a file.

`pulse` is called for every block and every file; it may raise, and then the work is given up where it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import IO, BinaryIO, Callable, Iterator

from outlast.node.pulse import no_pulse

_BLOCK = 1 << 20


def read_blocks(file: IO[bytes], pulse: Callable[[], None] = no_pulse) -> Iterator[bytes]:
    """The rest of `file`; the pulse is asked once for an empty one too."""
    while True:
        pulse()
        block = file.read(_BLOCK)
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
    """With mode and times. No half of a copy stays behind."""
    try:
        with open_file(source) as original, open(target, "wb") as copy:
            for block in read_blocks(original, pulse):
                copy.write(block)
        shutil.copystat(source, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(target)
        raise


def copy_tree(source: str, target: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Files, directories and links; what vanishes meanwhile was a temporary of a process still alive."""
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


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Put the names in it on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no such thing as syncing a directory; the files are safe.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
