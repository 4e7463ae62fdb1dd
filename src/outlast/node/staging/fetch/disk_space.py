"""Whether there is room for it: looked at first, and told with numbers when there is none."""

from __future__ import annotations

import errno
import os
from typing import Protocol, runtime_checkable

from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

#: No space, no quota, or no file as large as that.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@runtime_checkable
class Bounded(Protocol):
    """A sink that can say what it needs."""

    #: The directory in which it writes.
    place: str

    def needs(self, size: int) -> int:
        """How many more bytes of disk a file of `size` bytes takes; after `resume`."""


def check(sink: object, size: int, margin: int) -> None:
    """Raises GivenUp."""
    if not isinstance(sink, Bounded):
        return
    need = sink.needs(size)
    if need <= 0:
        return
    free = _free(sink.place)
    if free is not None and free < need + margin:
        detail = (
            "it needs %s more, and %s is to stay free; %s has %s. Make room, or choose another place."
            % (
                _in_words(need),
                _in_words(margin),
                sink.place,
                _in_words(free),
            )
        )
        raise FetchFailed(detail, SourceError(ErrorKind.DISK_FULL, detail))


def full(sink: object, error: OSError, done: int, size: int | None) -> FetchFailed:
    """What is there stays: the next try goes on from it."""
    place = sink.place if isinstance(sink, Bounded) else "the disk"
    free = _free(place) if isinstance(sink, Bounded) else None
    detail = "%s: %s after %s%s%s. Make room, or choose another place; what has come is kept." % (
        place,
        os.strerror(error.errno or errno.ENOSPC),
        _in_words(done),
        " of %s" % _in_words(size) if size is not None else "",
        "" if free is None else ", %s free%s" % (_in_words(free), _without_inodes(place)),
    )
    return FetchFailed(detail, SourceError(ErrorKind.DISK_FULL, detail))


def _free(place: str) -> int | None:
    try:
        found = os.statvfs(place)
    except OSError:
        return None  # then it shows when it is written
    return found.f_bavail * found.f_frsize


def _without_inodes(place: str) -> str:
    try:
        found = os.statvfs(place)
    except OSError:
        return ""  # then the number of bytes has to do
    return ", but no more files can be made" if found.f_files and not found.f_favail else ""


def _in_words(count: int) -> str:
    if count < 10_000_000:
        return "%d bytes" % count
    return "%.1f GB" % (count / 1e9) if count >= 1e9 else "%.0f MB" % (count / 1e6)
