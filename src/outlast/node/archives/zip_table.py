"""The table of contents of a zip, read in parts: the standard library would load all of it at once.

A table may have millions of entries, each of which takes ten times its size in memory. So the library gets
one part after the other, as if the archive had only these members.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import BinaryIO, Iterator

from outlast.node.archives.sink import BadArchive

#: Bytes of the table in one part, unless a single entry is larger.
_PART = 1 << 20
_ENTRY = struct.Struct("<4s24xHHH12x")
_ENTRY_MAGIC = b"PK\x01\x02"
#: The records at the end of an archive, with 64-bit numbers, and their lengths in bytes.
_END_64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR_64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4sHHHHLLH")
#: Indices in the list that the library returns for the end of an archive.
_SIGNATURE, _SIZE, _OFFSET, _LOCATION = 0, 5, 6, 9


def parts(file: BinaryIO, members: int) -> Iterator[zipfile.ZipFile]:
    """Yield the zip in `file` several times, each time with the next part of its members.

    Each is valid until the next. Raises BadArchive for more than `members` members, and what the library
    raises for a broken archive.
    """
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if not end:
        raise zipfile.BadZipFile("it has no table of contents")
    size, location = end[_SIZE], end[_LOCATION]
    if end[_SIGNATURE] == b"PK\x06\x06":
        location -= _END_64.size + _LOCATOR_64.size
    start = location - size
    # Bytes before the archive: all offsets in it are too small by their number.
    shift = start - end[_OFFSET]
    if start < 0 or shift < 0:
        raise zipfile.BadZipFile("its table of contents is not where it should be")
    found, position = 0, start
    while position < location:
        file.seek(position)
        table = file.read(min(_PART, location - position))
        length, count = _whole_entries(table)
        if not count:  # one entry is larger than a part, or cut off
            table = _read_entry(file, position, location)
            length, count = len(table), 1
        found += count
        if found > members:
            raise BadArchive("the archive has more than %d members; nothing of it is kept" % members)
        tail = table[:length] + _end_records(start, length, count, start - shift)
        with zipfile.ZipFile(_PartOfZip(file, start, tail)) as archive:
            yield archive
        position += length


def _whole_entries(table: bytes) -> tuple[int, int]:
    """Return how many bytes of the table are whole entries, and how many entries these are."""
    position = count = 0
    while position + _ENTRY.size <= len(table):
        magic, *lengths = _ENTRY.unpack_from(table, position)
        if magic != _ENTRY_MAGIC:
            raise zipfile.BadZipFile("its table of contents is damaged")
        after = position + _ENTRY.size + sum(lengths)
        if after > len(table):
            break
        position, count = after, count + 1
    return position, count


def _read_entry(file: BinaryIO, position: int, end: int) -> bytes:
    file.seek(position)
    head = file.read(_ENTRY.size)
    if len(head) == _ENTRY.size and head.startswith(_ENTRY_MAGIC):
        length = _ENTRY.size + sum(_ENTRY.unpack(head)[1:])
        if position + length <= end:
            return head + file.read(length - _ENTRY.size)
    raise zipfile.BadZipFile("its table of contents is cut off")


def _end_records(start: int, length: int, count: int, offset: int) -> bytes:
    """Return the end of an archive whose table, at `start`, has these bytes and entries."""
    end = _END_64.pack(b"PK\x06\x06", _END_64.size - 12, 45, 45, 0, 0, count, count, length, offset)
    locator = _LOCATOR_64.pack(b"PK\x06\x07", 0, start + length, 1)
    return end + locator + _END.pack(b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


class _PartOfZip(io.RawIOBase):
    """The first `start` bytes of a file, followed by `tail`."""

    def __init__(self, file: BinaryIO, start: int, tail: bytes) -> None:
        self._file = file
        self._start = start
        self._tail = tail
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence, self._start + len(self._tail))
        if base + offset < 0:
            raise OSError(22, "a position before the beginning")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = max(0, self._start + len(self._tail) - self._position)
        found = b""
        if self._position < self._start:
            self._file.seek(self._position)
            found = self._file.read(min(size, self._start - self._position))
        inside = max(0, self._position + len(found) - self._start)
        if self._position + len(found) >= self._start:
            found += self._tail[inside : inside + size - len(found)]
        self._position += len(found)
        return found
