"""Validation of member names: relative, below the target, printable, and not too long.

Names are bytes, as in the archive and as in Linux. A name that is not UTF-8 is accepted as it is: old
archives have names in Latin-1.
"""

from __future__ import annotations

import re
from functools import lru_cache

from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable

#: The longest path component on Linux, in bytes.
_LONGEST_PART = 255
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
#: Fast path for the common case: no slash, no backslash, no control character, not one or two dots.
_PLAIN = re.compile(rb"(?!\.{1,2}\Z)[^\x00-\x1f\x7f/\\]{1,255}\Z")


def clean(name: bytes, limits: ArchiveLimits) -> bytes:
    """Return the path below the target, without `.` and empty parts; empty if it is the target itself.

    Raises BadArchive if the name is not safe.
    """
    folder, slash, last = name.rpartition(b"/")
    if not _PLAIN.match(last):
        return _clean_path(name, limits)
    if not slash:
        return last
    parent = _clean_path(folder, limits) if folder else _refuse(name, "an absolute path")
    path = parent + b"/" + last if parent else last
    if len(path) > limits.path_bytes or path.count(b"/") >= limits.path_parts:
        _refuse_length(path, limits)
    return path


@lru_cache(maxsize=256)
def _clean_path(name: bytes, limits: ArchiveLimits) -> bytes:
    if _CONTROL.search(name):
        _refuse(name, "a name with control characters")
    if b"\\" in name:
        _refuse(name, "a name with a backslash, which some systems read as a separator")
    if name.startswith(b"/"):
        _refuse(name, "an absolute path")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    for part in parts:
        if part == b"..":
            _refuse(name, "a path that leads upwards")
        if len(part) > _LONGEST_PART:
            _refuse(name, "a name of %d bytes, and %d is the limit" % (len(part), _LONGEST_PART))
    path = b"/".join(parts)
    if len(path) > limits.path_bytes or len(parts) > limits.path_parts:
        _refuse_length(path, limits)
    return path


def join(parent: bytes, path: bytes, limits: ArchiveLimits) -> bytes:
    """Return `path` below the directory `parent`; both must be clean. Raises BadArchive if it is too long."""
    whole = parent + b"/" + path if parent and path else parent or path
    if len(whole) > limits.path_bytes or whole.count(b"/") >= limits.path_parts:
        _refuse_length(whole, limits)
    return whole


def _refuse_length(path: bytes, limits: ArchiveLimits) -> None:
    _refuse(
        path,
        "a path of %d bytes and %d parts, and the limits are %d and %d"
        % (len(path), path.count(b"/") + 1, limits.path_bytes, limits.path_parts),
    )


def _refuse(name: bytes, reason: str) -> bytes:
    raise BadArchive("the archive has %s: %s" % (reason, printable(name)))
