"""The part of a tar that is in none of its files, kept beside them while it is unpacked.

Headers and padding, and how they and the files' content took turns. Skeleton and files together are the bytes
of the archive up to where it was cut, so that a later process can compute its digest from the first byte on,
and read on in the middle of whatever it was.

An append-only file. One record for each block that was fed, with the offset in the stream at which the block
began, and compressed: headers are mostly zeros. It is written before the files of that block: a file is never
ahead of the skeleton. A record that begins before the end of an earlier one replaces what was after that
point, which is how a process goes on that found less in the files than the skeleton says. A torn record ends
the reading.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Iterator, NamedTuple

from outlast.node.archives.actions import ParserOutput
from outlast.node.archives.tree import write_all

#: Where in the stream it begins, for how many bytes it stands, length and CRC-32 of what follows.
_HEAD = struct.Struct("<4sQQII")
_MAGIC = b"OLsk"
_COUNT = struct.Struct("<I")
#: The least compression is a tenth of the time of the usual one, and headers shrink to a fifteenth anyway.
_LEVEL = 1


class SkeletonRecord(NamedTuple):
    #: In the skeleton's file.
    place: int
    length: int
    #: The part of the stream that counts.
    start: int
    stop: int


class Skeleton:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def append(self, start: int, parsed: ParserOutput) -> None:
        """What a block that began at `start` came to. On disk before this returns, as files are."""
        runs = [*parsed.runs, parsed.literal_rest, 0]
        size = sum(runs)
        if not size:
            return
        table = struct.pack("<%dQ" % len(runs), *runs)
        body = zlib.compress(b"".join((_COUNT.pack(len(runs)), table, *parsed.literals)), _LEVEL)
        write_all(self._file, _HEAD.pack(_MAGIC, start, size, len(body), zlib.crc32(body)) + body)

    def records(self) -> list[SkeletonRecord]:
        """Those that count, in their order, without a gap. What is torn is cut off."""
        found: list[SkeletonRecord] = []
        place = 0
        while True:
            head = os.pread(self._file, _HEAD.size, place)
            if len(head) < _HEAD.size:
                break
            magic, start, size, length, crc = _HEAD.unpack(head)
            body = os.pread(self._file, length, place + _HEAD.size) if magic == _MAGIC else b""
            if magic != _MAGIC or len(body) < length or zlib.crc32(body) != crc:
                break
            while found and found[-1].start >= start:
                found.pop()
            reached = found[-1].stop if found else 0
            if reached < start:
                break
            if found:
                found[-1] = found[-1]._replace(stop=start)
            found.append(SkeletonRecord(place + _HEAD.size, length, start, start + size))
            place += _HEAD.size + length
        os.ftruncate(self._file, place)
        os.lseek(self._file, place, os.SEEK_SET)
        return found

    def runs(self, record: SkeletonRecord) -> Iterator[tuple[bytes, int]]:
        """Literal bytes, then how many bytes of a file follow, and again; as far as the record counts."""
        raw = zlib.decompress(os.pread(self._file, record.length, record.place))
        (count,) = _COUNT.unpack_from(raw)
        lengths = struct.unpack_from("<%dQ" % count, raw, _COUNT.size)
        at = _COUNT.size + 8 * count
        room = record.stop - record.start
        for index in range(0, count, 2):
            literal = raw[at : at + min(lengths[index], room)]
            at += lengths[index]
            room -= len(literal)
            content = min(lengths[index + 1], room)
            room -= content
            yield literal, content

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
