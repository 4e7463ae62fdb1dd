"""Kernel locks on files: the kernel releases them when the process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl

#: Errors of a file system without locks; some parallel file systems are mounted that way.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def try_lock(descriptor: int) -> bool:
    """Lock the file without waiting; the lock lasts until the descriptor is closed.

    Return False if the file system has no locks. Raises BlockingIOError if another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)
