"""A private, writable copy of an item, for the attempt that requested it with `writable: yes`.

Where the file system can share blocks between files (Btrfs, XFS), a copy takes no space until it is changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import BinaryIO, Callable

from outlast.node.files import read_blocks
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_directory, open_file, remove_tree, walk

#: The ioctl that lets a file share all blocks of another one.
_FICLONE = 0x40049409
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNFINISHED = ".copying"


def make_copy(parent: int, name: str, target: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Copy the file or tree `name` of an open directory to `target`. Raises OSError.

    A copy at `target` is kept: an earlier leg of the attempt has made it, and may have changed it. It gets
    that name when it is complete.
    """
    if os.path.lexists(target):
        return
    unfinished = target + _UNFINISHED
    os.makedirs(os.path.dirname(target), exist_ok=True)
    _remove(unfinished, pulse)
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            _copy_tree(parent, name, unfinished, pulse)
        else:
            _copy_file(parent, name, unfinished, pulse)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            _remove(unfinished, no_pulse)
        raise
    os.rename(unfinished, target)


def _copy_tree(parent: int, name: str, target: str, pulse: Callable[[], None]) -> None:
    os.mkdir(target)
    top = open_directory(name, parent)
    try:
        for entry in walk(top, pulse):
            goal = os.path.join(target, entry.path)
            if entry.is_directory:
                os.mkdir(goal)
            elif entry.is_file:
                _copy_file(entry.dir_fd, entry.name, goal, pulse)
            elif entry.is_link:
                os.symlink(os.readlink(entry.name, dir_fd=entry.dir_fd), goal)
    finally:
        os.close(top)


def _copy_file(parent: int, name: str, target: str, pulse: Callable[[], None]) -> None:
    with open_file(name, parent) as source:
        executable = os.fstat(source.fileno()).st_mode & 0o111
        with open(os.open(target, _NEW_FILE, 0o755 if executable else 0o644), "wb") as copy:
            if not _share_blocks(source, copy):
                for block in read_blocks(source, pulse):
                    copy.write(block)


def _share_blocks(source: BinaryIO, copy: BinaryIO) -> bool:
    """Return False if the file system cannot do that; the bytes must be copied then."""
    try:
        fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _remove(path: str, pulse: Callable[[], None]) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path, pulse)
    elif os.path.lexists(path):
        os.unlink(path)
