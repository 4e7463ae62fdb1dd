"""One file of a checkpoint: a header with the tree, the buffers, and a trailer that vouches for every bit.

    "outlast" and the format's number                            8 bytes
    length of the header                                         8 bytes, little end first
    header: JSON with the tree, filled up with spaces to a multiple of 64
    buffers, each at a multiple of 64
    trailer: JSON with a CRC32 of each block of all before it, and what is known of the checkpoint
    SHA-256 of the trailer
    length of the trailer and its seal                           24 bytes

The trailer is written last: without it the file is no checkpoint. A file can be moved, copied and mailed;
reading it builds plain values only and runs nothing. A checkpoint is a directory with one such file for
each process that took part in saving it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from outlast.training.background import MOST
from outlast.training.checkpoints import copy_buffer, durable_files
from outlast.training.checkpoints.arrays import RawMemory
from outlast.training.checkpoints.checksums import BLOCK, Checksums, Mapped, check_blocks
from outlast.training.checkpoints.state_tree import Image, aligned, put_together
from outlast.training.errors import CheckpointError, Damaged

FORMAT = 2
_MAGIC = b"outlast"
_PREFIX = 16
_SEAL = b"sha256 "
_SEAL_LENGTH = len(_SEAL) + 64 + 1
_FOOTER_LENGTH = 24
#: The longest trailer that is looked at: a checksum for each block of a terabyte.
_LONGEST_TRAILER = 16 * 2**20


@dataclass(frozen=True)
class PartManifest:
    """What a sealed trailer says."""

    step: int
    generation: int
    sequence: int
    #: Which of how many processes wrote it.
    rank: int
    world: int
    #: Bytes before the trailer.
    size: int
    crcs: tuple[int, ...]


def part_name(rank: int = 0, world: int = 1) -> str:
    return "state.outlast" if world == 1 else "state-%05d-of-%05d.outlast" % (rank, world)


@dataclass(frozen=True)
class Layout:
    """The first bytes of a file, and where its buffers begin."""

    header: bytes
    image: Image

    @property
    def size(self) -> int:
        return len(self.header) + self.image.size

    def fill(self, target: memoryview) -> None:
        """Copy the whole state out of where it lies."""
        target[: len(self.header)] = self.header
        position = len(self.header)
        address = copy_buffer.address_of(target)
        pieces, gaps = [], []
        for offset, buffer in self.image.buffers:
            begin = len(self.header) + offset
            gaps.append(slice(position, begin))
            position = begin + buffer.nbytes
            if isinstance(buffer, RawMemory):
                pieces.append((address + begin, buffer.address, buffer.nbytes))
            else:
                buffer.fill(target[begin:position])
        copy_buffer.copy(pieces)
        # Last, because whoever touches fresh memory first waits for it, and that is better shared as well.
        for gap in gaps:
            target[gap] = bytes(gap.stop - gap.start)


def lay_out(image: Image) -> Layout:
    described = {"order": sys.byteorder, "tree": image.tree, "files": image.files}
    text = json.dumps(described, separators=(",", ":"), allow_nan=False).encode("ascii")
    text = text.ljust(aligned(_PREFIX + len(text)) - _PREFIX)
    return Layout(_MAGIC + bytes([FORMAT]) + len(text).to_bytes(8, "little") + text, image)


def write(path: str, head: dict[str, Any], content: memoryview) -> int:
    """A new file with this content and its trailer, durable but for its name; its size in bytes."""
    with durable_files.descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        sums = Checksums(content)
        try:
            durable_files.write_past_cache(fd, content)
        finally:
            crcs = sums.finish()
        described = {**head, "size": len(content), "block": BLOCK, "crc32": crcs}
        trailer = sealed(described)
        durable_files.write_all(fd, memoryview(trailer))
        os.fsync(fd)
    return len(content) + len(trailer)


def sealed(described: dict[str, Any]) -> bytes:
    body = json.dumps(described, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    return body + _seal(body) + _footer(len(body) + _SEAL_LENGTH)


def _seal(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode("ascii") + b"\n"


def _footer(length: int) -> bytes:
    return b"%0*d\n" % (_FOOTER_LENGTH - 1, length)


def read_manifest(path: str) -> PartManifest:
    """Raises Damaged, or CheckpointError for a whole file of a format that this version cannot read."""
    with durable_files.regular_file(path) as fd:
        return _read_manifest(fd, path)


def _read_manifest(fd: int, path: str) -> PartManifest:
    length = os.fstat(fd).st_size
    footer = durable_files.read_at(fd, max(0, length - _FOOTER_LENGTH), min(length, _FOOTER_LENGTH))
    digits = footer[:-1]
    if len(footer) != _FOOTER_LENGTH or not digits.isdigit() or footer != _footer(int(digits)):
        raise Damaged("its end is missing")
    size = length - _FOOTER_LENGTH - int(digits)
    if size < _PREFIX or not _SEAL_LENGTH < int(digits) <= _LONGEST_TRAILER:
        raise Damaged("its end is not that of a checkpoint")
    trailer = durable_files.read_at(fd, size, int(digits))
    body, seal = trailer[:-_SEAL_LENGTH], trailer[-_SEAL_LENGTH:]
    if seal != _seal(body):
        raise Damaged("its trailer does not match its own checksum")
    prefix = durable_files.read_at(fd, 0, _PREFIX)
    if prefix[:7] != _MAGIC or prefix[7] == FORMAT:
        return _parse_trailer(body, size)
    try:
        manifest = _parse_trailer(body, size)
    except Damaged:
        manifest = None  # another format may have another trailer; the seal of this one is valid
    if manifest is not None:
        # Its checksum covers the format byte: without this check one flipped bit looks like another version.
        check_blocks(fd, min(size, BLOCK), manifest.crcs[:1], threads=1)
    raise CheckpointError(
        "%s has format %d, and this Outlast reads format %d; use the version that wrote it"
        % (path, prefix[7], FORMAT)
    )


def _parse_trailer(body: bytes, size: int) -> PartManifest:
    """Return what a sealed trailer says of a file with `size` bytes before it. Raises Damaged."""
    try:
        raw = _parsed(body)
        numbers = [raw[key] for key in ("step", "generation", "sequence", "rank", "world", "size", "block")]
        crcs = raw["crc32"]
        if any(type(number) is not int or number < 0 for number in [*numbers, *crcs]):
            raise Damaged("its trailer has something else where a number belongs")
        step, generation, sequence, rank, world, told, block = numbers
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged("its trailer cannot be understood: %s" % error) from error
    if told != size or block != BLOCK or len(crcs) != -(-size // BLOCK) or rank >= world:
        raise Damaged("its trailer is not that of this file")
    return PartManifest(step, generation, sequence, rank, world, size, tuple(crcs))


def _parsed(text: bytes) -> Any:
    return json.loads(text, parse_int=_short_int, parse_constant=_no_constant)


def _short_int(text: str) -> int:
    if len(text) > 24:
        raise ValueError("a number too long")
    return int(text)


def _no_constant(text: str) -> float:
    raise ValueError("%s is no number here" % text)


def read_state(path: str) -> tuple[tuple[Any, Any], PartManifest]:
    """The state and its files, every bit checked; arrays lie in the file until they are written to.

    Raises Damaged, CheckpointError, OSError.
    """
    with durable_files.regular_file(path) as fd:
        manifest = _read_manifest(fd, path)
        check_blocks(fd, manifest.size, manifest.crcs, threads=MOST)
        return _revive(Mapped(fd, manifest.size)), manifest


def _revive(mapped: Mapped) -> Any:
    content = mapped.whole
    length = int.from_bytes(content[8:_PREFIX], "little")
    if bytes(content[:7]) != _MAGIC or _PREFIX + length > len(content):
        raise Damaged("its beginning is not that of a checkpoint")
    try:
        raw = _parsed(bytes(content[_PREFIX : _PREFIX + length]))
        order, tree, kept = raw["order"], raw["tree"], raw["files"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged("its header cannot be understood: %s" % error) from error
    if order not in ("little", "big"):
        raise Damaged("its header names no order of bytes")
    mapped.begin, mapped.is_swapped = _PREFIX + length, order != sys.byteorder
    return put_together(tree, mapped), put_together(kept, mapped)


def verify(path: str) -> PartManifest:
    """Read the whole file back without building its state. Raises Damaged, CheckpointError, OSError."""
    with durable_files.regular_file(path) as fd:
        manifest = _read_manifest(fd, path)
        # A training has work for the other cores.
        check_blocks(fd, manifest.size, manifest.crcs, threads=1)
    return manifest
