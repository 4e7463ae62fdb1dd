"""The index file: a Table on disk, beside the archive or in the user's cache directory.

It only saves time and is never trusted. It is used if it is owned by us, by root or by the archive's owner,
matches the archive (size and time), is complete (checksum) and plausible (every offset within the archive);
otherwise it is written again. Two processes that write it at the same time write the same content.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import zlib
from array import array
from dataclasses import dataclass
from typing import Any, Literal

from outlast.data.item_table import Table

#: The last byte is the version of the format.
_MAGIC = b"OUTLIDX\x01"
#: Magic, byte order, nested, the archive's size and time, lengths of the nine parts, checksum of the rest.
_HEAD = struct.Struct("=8sHHxxxxqq9qI4x")
_BYTE_ORDER = 0x0102
#: The parts of a Table in file order, with the type codes of their elements.
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
    """Size and modification time of an archive, which show whether it has changed."""

    size: int
    #: Nanoseconds since the epoch.
    modified: int

    @staticmethod
    def of(status: os.stat_result) -> Fingerprint:
        return Fingerprint(status.st_size, status.st_mtime_ns)


def index_paths(archive: str, nested: bool) -> list[str]:
    """Return the possible paths of an archive's index, in order of preference."""
    kind = "index" if nested else "flat-index"
    folder, name = os.path.split(os.path.realpath(archive))
    paths = [os.path.join(folder, ".%s.%s" % (name, kind))]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(cache):
        key = hashlib.sha256(os.fsencode(os.path.join(folder, name))).hexdigest()[:32]
        paths.append(os.path.join(cache, "outlast", "indexes", "%s.%s" % (key, kind)))
    return paths


def read(path: str, archive: Fingerprint, nested: bool, owner: int) -> Table | None:
    """Return the table, or None if the index is missing or cannot be used. `owner` is the archive's uid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # Missing, not readable, or a link.
        return None
    try:
        parts = _read_parts(descriptor, archive, nested, owner)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if parts is None:
        return None
    table = Table(*parts)
    return table if table.fits(archive.size) else None


def write(path: str, table: Table, archive: Fingerprint, nested: bool) -> None:
    """Write the index atomically, without a sync: `read` detects a damaged one. Raises OSError.

    A directory that is read-only, such as one in a data cache, is not written to, not even by root.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.stat(folder).st_mode & 0o222:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
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
    # A user who can write the index decides which bytes an item has; the archive's owner decides that anyway.
    is_trusted = status.st_uid in (os.geteuid(), 0, owner) and not status.st_mode & 0o022
    if not is_trusted or not stat.S_ISREG(status.st_mode):
        return None
    with open(descriptor, "rb", closefd=False) as file:
        head = file.read(_HEAD.size)
        lengths = _part_lengths(head, archive, nested)
        if lengths is None or status.st_size != _HEAD.size + sum(lengths):
            return None
        body = file.read(sum(lengths))
    if len(body) != sum(lengths) or _checksum(head, body) != _HEAD.unpack(head)[-1]:
        return None
    return _split_parts(body, lengths)


def _part_lengths(head: bytes, archive: Fingerprint, nested: bool) -> list[int] | None:
    if len(head) != _HEAD.size:
        return None
    magic, order, kind, size, modified, *lengths, _ = _HEAD.unpack(head)
    if (magic, order, kind, size, modified) != (_MAGIC, _BYTE_ORDER, nested, archive.size, archive.modified):
        return None
    widths = [array(code).itemsize for _, code in _PARTS]
    if any(length < 0 or length % width for length, width in zip(lengths, widths)):
        return None
    return lengths


def _split_parts(body: bytes, lengths: list[int]) -> list[Any]:
    parts: list[Any] = []
    offset = 0
    view = memoryview(body)
    for (_, code), length in zip(_PARTS, lengths):
        part = view[offset : offset + length]
        # An empty view cannot be cast.
        parts.append(bytes(part) if code == "B" else part.cast(code) if length else array(code))
        offset += length
    return parts


def _checksum(head: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(head[: _HEAD.size - 8]))
