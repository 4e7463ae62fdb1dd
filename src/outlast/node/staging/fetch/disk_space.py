"""Free disk space: checked before a file is written, and reported with numbers when it runs out."""

from __future__ import annotations

import errno
import os
from typing import Protocol, runtime_checkable

from outlast.node.quantities import show_size
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

#: No space, no quota, or a file larger than allowed.
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@runtime_checkable
class SpaceAwareSink(Protocol):
    """A sink that knows how much disk it needs."""

    #: The directory in which it writes.
    place: str

    def needs(self, size: int) -> int:
        """Return how many more bytes of disk a file of `size` bytes takes. Only after `resume`."""


def require_space(sink: object, size: int, margin: int) -> None:
    """Raise FetchFailed if the disk is too small for a file of `size` bytes and `margin` free bytes.

    Sinks that do not know what they need are not checked.
    """
    if not isinstance(sink, SpaceAwareSink):
        return
    need = sink.needs(size)
    if need <= 0:
        return
    free = _free_bytes(sink.place)
    if free is not None and free < need + margin:
        detail = (
            "it needs %s more disk space, and %s must stay free, but %s has %s. Free some space or choose "
            "another directory."
            % (
                show_size(need),
                show_size(margin),
                sink.place,
                show_size(free),
            )
        )
        raise FetchFailed(detail, SourceError(ErrorKind.DISK_FULL, detail))


def disk_full_error(sink: object, error: OSError, done: int, size: int | None) -> FetchFailed:
    """Return the exception for a disk that is full after `done` bytes, which the sink keeps."""
    place = sink.place if isinstance(sink, SpaceAwareSink) else "the disk"
    free = _free_bytes(place) if isinstance(sink, SpaceAwareSink) else None
    detail = "%s: %s after %s%s%s. Free some space or choose another directory; what has arrived is kept." % (
        place,
        os.strerror(error.errno or errno.ENOSPC),
        show_size(done),
        " of %s" % show_size(size) if size is not None else "",
        "" if free is None else ", %s free%s" % (show_size(free), _inode_hint(place)),
    )
    return FetchFailed(detail, SourceError(ErrorKind.DISK_FULL, detail))


def _free_bytes(place: str) -> int | None:
    try:
        found = os.statvfs(place)
    except OSError:
        return None  # not checked: a full disk shows when it is written
    return found.f_bavail * found.f_frsize


def _inode_hint(place: str) -> str:
    try:
        found = os.statvfs(place)
    except OSError:
        return ""
    return ", but no more files can be created" if found.f_files and not found.f_favail else ""
