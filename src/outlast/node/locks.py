"""The kernel's lock on a file: it goes with the process that had it, however that ended."""

from __future__ import annotations

import errno
import fcntl

#: What a file system without locks says; some parallel ones are mounted so.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock(descriptor: int) -> bool:
    """True: it is ours until the descriptor is closed. False: there are no locks here.

    Raises BlockingIOError where another has it; it never waits.
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
