"""A Table on disk: beside the archive, or in the user's cache.

It is a convenience and never trusted: it must be ours, of this very archive (size and time), whole (checksum)
and possible (every offset within the archive), or it is made anew. Two processes that make it at once write
the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from array import array
from dataclasses import dataclass
from typing import Any, Literal

from outlast.data.item_table import Table

#: The last byte is the version of what follows.
_MAGIC = b"OUTLIDX\x01"
#: Magic, byte order, nested, archive's size and time, lengths of the nine parts, checksum of all but itself.
_HEAD = struct.Struct("=8sHHxxxxqq9qI4x")
_BYTE_ORDER = 0x0102
#: The parts in their order, with the type of their elements.
_PARTS: tuple[tuple[str, Literal["q", "i", "B"]], ...] = (
    ("offsets", "q"),
    ("sizes", "q"),
    ("packed", "q"),
    ("name_ends", "q"),
    ("folder_ends", "q"),
    ("roots", "q"),
    ("folders", "i"),
    ("names", "B"),
    ("folder_names", "B"),
)


@dataclass(frozen=True)
class Fingerprint:
    """By which an archive is known again."""

    size: int
    #: Nanoseconds since the epoch.
    modified: int

    @staticmethod
    def of(status: os.stat_result) -> Fingerprint:
        return Fingerprint(status.st_size, status.st_mtime_ns)


def places(archive: str, nested: bool) -> list[str]:
    """Where the index of an archive may be, the best place first."""
    kind = "index" if nested else "flat-index"
    folder, name = os.path.split(os.path.realpath(archive))
    found = [os.path.join(folder, ".%s.%s" % (name, kind))]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(cache):
        key = hashlib.sha256(os.fsencode(os.path.join(folder, name))).hexdigest()[:32]
        found.append(os.path.join(cache, "outlast", "indexes", "%s.%s" % (key, kind)))
    return found


def read(path: str, archive: Fingerprint, nested: bool, owner: int) -> Table | None:
    """The table, or None if there is none that can be used. `owner` is whose the archive is."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # Not there, not ours to read, or a link: then it is made anew.
        return None
    try:
        found = _read_parts(descriptor, archive, nested, owner)
    except OSError:
        # What cannot be read is made anew.
        return None
    finally:
        os.close(descriptor)
    if found is None:
        return None
    table = Table(*found)
    return table if table.fits(archive.size) else None


def write(path: str, table: Table, archive: Fingerprint, nested: bool) -> None:
    """Whole or not at all. Not synced: what a power cut leaves of it is found out. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    parts = [bytes(memoryview(getattr(table, name))) for name, _ in _PARTS]
    body = b"".join(parts)
    fields = (_MAGIC, _BYTE_ORDER, nested, archive.size, archive.modified, *map(len, parts))
    head = _HEAD.pack(*fields, 0)
    head = _HEAD.pack(*fields, _checksum(head, body))
    temporary = "%s.%s.tmp" % (path, os.urandom(6).hex())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb") as file:
            file.write(head)
            file.write(body)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read_parts(descriptor: int, archive: Fingerprint, nested: bool, owner: int) -> list[Any] | None:
    status = os.fstat(descriptor)
    # Who can write it can say what is read in place of an item; the archive's owner can do so anyway.
    ours = status.st_uid in (os.geteuid(), 0, owner) and not status.st_mode & 0o022
    if not ours or not stat.S_ISREG(status.st_mode):
        return None
    with open(descriptor, "rb", closefd=False) as file:
        head = file.read(_HEAD.size)
        lengths = _lengths(head, archive, nested)
        if lengths is None or status.st_size != _HEAD.size + sum(lengths):
            return None
        body = file.read(sum(lengths))
    if len(body) != sum(lengths) or _checksum(head, body) != _HEAD.unpack(head)[-1]:
        return None
    return _parts(body, lengths)


def _lengths(head: bytes, archive: Fingerprint, nested: bool) -> list[int] | None:
    if len(head) != _HEAD.size:
        return None
    magic, order, kind, size, modified, *lengths, _ = _HEAD.unpack(head)
    if (magic, order, kind, size, modified) != (_MAGIC, _BYTE_ORDER, nested, archive.size, archive.modified):
        return None
    widths = [array(code).itemsize for _, code in _PARTS]
    if any(length < 0 or length % width for length, width in zip(lengths, widths)):
        return None
    return lengths


def _parts(body: bytes, lengths: list[int]) -> list[Any]:
    parts: list[Any] = []
    place = 0
    view = memoryview(body)
    for (_, code), length in zip(_PARTS, lengths):
        part = view[place : place + length]
        # A view of nothing cannot be cast.
        parts.append(bytes(part) if code == "B" else part.cast(code) if length else array(code))
        place += length
    return parts


def _checksum(head: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(head[: _HEAD.size - 8]))
