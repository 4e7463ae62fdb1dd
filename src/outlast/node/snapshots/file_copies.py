"""Private copies of files that somebody may be writing: shared blocks (reflink), a second name, or a copy."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import BinaryIO, Callable

from outlast.untrusted_files import create_file, open_file

_BLOCK_BYTES = 1 << 20
#: The request of Linux to share the blocks of another file (btrfs, XFS, bcachefs, some NFS servers).
_FICLONE = 0x40049409
#: Errors of a file system that cannot share blocks, or give a file a second name; a copy may still work.
_NOT_OFFERED = (
    *(errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EMLINK),
    *(errno.EBADF, errno.ETXTBSY, errno.EACCES),
)


@dataclass(frozen=True)
class Copied:
    """A copy of a file: its size, its SHA-256, and the bytes that were written for it."""

    size: int
    sha256: str
    written: int


def copy(
    name: str, dir_fd: int, target: str, target_fd: int, pulse: Callable[[], None], *, link: bool = False
) -> Copied:
    """Copy a regular file durably, with its mode and times. Raises OSError.

    With `link` the copy may be a second name: it then changes if somebody writes to the file in place.
    """
    with open_file(name, dir_fd) as source:
        status = os.fstat(source.fileno())
        if link and _link(source, target, target_fd):
            return Copied(*_digest(source, status.st_size, pulse), written=0)
        with create_file(target, target_fd) as made:
            if _share_blocks(source, made):
                with open_file(target, target_fd) as again:
                    size, digest = _digest(again, os.fstat(again.fileno()).st_size, pulse)
                written = 0
            else:
                size, digest = _digest(source, status.st_size, pulse, made)
                written = size
            made.flush()
            os.chmod(made.fileno(), stat.S_IMODE(status.st_mode) & 0o777 | stat.S_IRUSR)
            os.utime(made.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(made.fileno())
    return Copied(size, digest, written)


def _digest(
    source: BinaryIO, most: int, pulse: Callable[[], None], into: BinaryIO | None = None
) -> tuple[int, str]:
    """Return size and SHA-256 of the first `most` bytes of a file, which may grow meanwhile.

    Write what is read to `into`, if given.
    """
    digest, size = hashlib.sha256(), 0
    while size < most:
        pulse()
        block = source.read(min(_BLOCK_BYTES, most - size))
        if not block:
            break
        digest.update(block)
        size += len(block)
        if into is not None:
            into.write(block)
    return size, digest.hexdigest()


def _share_blocks(source: BinaryIO, target: BinaryIO) -> bool:
    """Let `target` share the blocks of `source`. Return False if this file system cannot do that."""
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        return False
    return True


def _link(source: BinaryIO, target: str, target_fd: int) -> bool:
    """Give the open file a second name. Return False if this file system cannot do that."""
    try:
        os.link(f"/proc/self/fd/{source.fileno()}", target, dst_dir_fd=target_fd, follow_symlinks=True)
    except OSError as error:
        if error.errno not in (*_NOT_OFFERED, errno.ENOENT):
            raise
        return False
    return True
