"""Which names an archive may give to files: relative ones that lead downwards and can be printed.

Names are bytes, as the archive has them and as Linux has them. One that is not UTF-8 is taken as it is: old
archives have names in Latin-1.
"""

from __future__ import annotations

import re
from functools import lru_cache

from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown

#: What Linux allows for one component.
_LONGEST_PART = 255
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
#: The common case, seen at once: no slash, no backslash, no control character, not one or two dots.
_PLAIN = re.compile(rb"(?!\.{1,2}\Z)[^\x00-\x1f\x7f/\\]{1,255}\Z")


def clean(name: bytes, limits: ArchiveLimits) -> bytes:
    """The path below the target, without `.` and empty parts; empty: the target. Raises BadArchive."""
    folder, slash, last = name.rpartition(b"/")
    if not _PLAIN.match(last):
        return _checked(name, limits)
    if not slash:
        return last
    above = _checked(folder, limits) if folder else _refuse(name, "an absolute path")
    path = above + b"/" + last if above else last
    if len(path) > limits.path_bytes or path.count(b"/") >= limits.path_parts:
        _refuse_length(path, limits)
    return path


@lru_cache(maxsize=256)
def _checked(name: bytes, limits: ArchiveLimits) -> bytes:
    if _CONTROL.search(name):
        _refuse(name, "a name with control characters")
    if b"\\" in name:
        _refuse(name, "a name with a backslash, which is a separator to some and a letter to others")
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


def joined(above: bytes, path: bytes, limits: ArchiveLimits) -> bytes:
    """`path` below the directory `above`, both clean. Raises BadArchive."""
    whole = above + b"/" + path if above and path else above or path
    if len(whole) > limits.path_bytes or whole.count(b"/") >= limits.path_parts:
        _refuse_length(whole, limits)
    return whole


def _refuse_length(path: bytes, limits: ArchiveLimits) -> None:
    _refuse(
        path,
        "a path of %d bytes and %d parts, and %d and %d are the limits"
        % (len(path), path.count(b"/") + 1, limits.path_bytes, limits.path_parts),
    )


def _refuse(name: bytes, why: str) -> bytes:
    raise BadArchive("the archive has %s: %s" % (why, shown(name)))
