"""The skeleton of a tar: the bytes that are in none of its files, kept beside them while it is unpacked.

It holds headers and padding, and how they alternate with the content of files. Skeleton and files together
are the bytes of the archive up to where it was cut off, so a later process can compute the digest from the
first byte on, and resume parsing at any point.

The skeleton is an append-only file with one compressed record for each block that was fed; the record holds
the offset in the stream at which the block began. It is written before the files of that block, so that a
file is never ahead of the skeleton. A record that begins before the end of an earlier one replaces what came
after that point: this is how a process resumes that found less in the files than the skeleton describes.
Reading stops at a torn record.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Iterator, NamedTuple

from outlast.node.archives.actions import ParserOutput
from outlast.node.archives.tree import write_all

#: Magic, offset in the stream, number of bytes in the stream, length and CRC-32 of the body that follows.
_HEAD = struct.Struct("<4sQQII")
_MAGIC = b"OLsk"
_COUNT = struct.Struct("<I")
#: Level 1 takes a tenth of the time of the default level, and headers still shrink to a fifteenth.
_COMPRESSION_LEVEL = 1


class SkeletonRecord(NamedTuple):
    #: Of the body, in the skeleton's file.
    offset: int
    length: int
    #: The part of the stream for which this record is valid.
    start: int
    stop: int


class Skeleton:
    def __init__(self, path: str) -> None:
        """Open the file `path`, or create it."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def append(self, start: int, parsed: ParserOutput) -> None:
        """Write the record of a block that began at offset `start` of the stream. Not synced."""
        runs = [*parsed.runs, parsed.trailing_literals, 0]
        size = sum(runs)
        if not size:
            return
        table = struct.pack("<%dQ" % len(runs), *runs)
        body = zlib.compress(b"".join((_COUNT.pack(len(runs)), table, *parsed.literals)), _COMPRESSION_LEVEL)
        write_all(self._file, _HEAD.pack(_MAGIC, start, size, len(body), zlib.crc32(body)) + body)

    def read_records(self) -> list[SkeletonRecord]:
        """Return the valid records, in order and without gaps. A torn end is truncated."""
        found: list[SkeletonRecord] = []
        offset = 0
        while True:
            head = os.pread(self._file, _HEAD.size, offset)
            if len(head) < _HEAD.size:
                break
            magic, start, size, length, crc = _HEAD.unpack(head)
            body = os.pread(self._file, length, offset + _HEAD.size) if magic == _MAGIC else b""
            if magic != _MAGIC or len(body) < length or zlib.crc32(body) != crc:
                break
            while found and found[-1].start >= start:
                found.pop()
            reached = found[-1].stop if found else 0
            if reached < start:
                break
            if found:
                found[-1] = found[-1]._replace(stop=start)
            found.append(SkeletonRecord(offset + _HEAD.size, length, start, start + size))
            offset += _HEAD.size + length
        os.ftruncate(self._file, offset)
        os.lseek(self._file, offset, os.SEEK_SET)
        return found

    def runs(self, record: SkeletonRecord) -> Iterator[tuple[bytes, int]]:
        """Yield (literal bytes, number of content bytes after them), as far as the record is valid."""
        raw = zlib.decompress(os.pread(self._file, record.length, record.offset))
        (count,) = _COUNT.unpack_from(raw)
        lengths = struct.unpack_from("<%dQ" % count, raw, _COUNT.size)
        at = _COUNT.size + 8 * count
        remaining = record.stop - record.start
        for index in range(0, count, 2):
            literal = raw[at : at + min(lengths[index], remaining)]
            at += lengths[index]
            remaining -= len(literal)
            content = min(lengths[index + 1], remaining)
            remaining -= content
            yield literal, content

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
