"""The format of one checkpoint file: a header, the buffers, and a trailer with checksums::

    "outlast" and the format number                              8 bytes
    length of the header                                         8 bytes, little-endian
    header: JSON with the state's tree, padded with spaces to a multiple of 64
    buffers, each at a multiple of 64
    trailer: JSON with a CRC32 of each block before it, and information about the checkpoint
    SHA-256 of the trailer
    length of the trailer and its SHA-256 line                   24 bytes

The trailer is written last: a file without it is not a checkpoint. Files can be moved and copied; reading one
builds plain values only and executes no code. A checkpoint is a directory with one such file for each process
that saved it.

All formats have the same frame: the first 8 bytes, and a trailer that is a JSON object with its SHA-256 and
its length behind it. The trailer repeats the format number, so it is believed only if the two agree: a
flipped bit is damage, and an intact file of a later version is recognized as such. Anything else may change
with the number, and what an earlier reader would misunderstand (such as a new type of node) must change it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from outlast.training.background import MAX_THREADS
from outlast.training.checkpoints import checkpoint_names, copy_buffer, durable_files, kept_files
from outlast.training.checkpoints.arrays import RawMemory
from outlast.training.checkpoints.checksums import BLOCK, BlockChecksums, MappedFile, check_blocks
from outlast.training.checkpoints.state_tree import ALIGNMENT, FlatState, align, unflatten
from outlast.training.errors import Damaged, UnknownFormat

#: The format that is written, and the oldest that is read: the one before, if a release wrote it.
FORMAT = 2
OLDEST_FORMAT = 2
#: The format of a file whose trailer has no number: 0.1 and 0.2 wrote none.
_UNNUMBERED = 2
_MAGIC = b"outlast"
_PREFIX = 16
_SEAL = b"sha256 "
_SEAL_LENGTH = len(_SEAL) + 64 + 1
_FOOTER_LENGTH = 24
#: Largest trailer that is read: enough for a checksum of each block of a terabyte.
_MAX_TRAILER = 16 * 2**20
#: The most processes that a checkpoint may have; a forged number must not make a reader look for more.
_MAX_WORLD = 1_000_000


@dataclass(frozen=True)
class PartManifest:
    """The content of a valid trailer."""

    step: int
    generation: int
    sequence: int
    #: The process that wrote the file, and the number of processes.
    rank: int
    world: int
    #: Bytes before the trailer.
    size: int
    crcs: tuple[int, ...]


def part_name(rank: int = 0, world: int = 1) -> str:
    """Return the file name of a process's part."""
    return "state.outlast" if world == 1 else "state-%05d-of-%05d.outlast" % (rank, world)


@dataclass(frozen=True)
class Layout:
    """The first bytes of a file and its buffers."""

    header: bytes
    image: FlatState

    @property
    def size(self) -> int:
        return len(self.header) + self.image.size

    def fill(self, target: memoryview) -> None:
        """Copy the state from its memory to `target`, which has `size` bytes."""
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
        # Last, because the first write to a new page waits for it, and `copy` shares that work among threads.
        for gap in gaps:
            target[gap] = bytes(gap.stop - gap.start)


def lay_out(image: FlatState) -> Layout:
    """Return the layout of a file with this state."""
    fields = {"order": sys.byteorder, "tree": image.tree, "files": image.files}
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")
    text = text.ljust(align(_PREFIX + len(text)) - _PREFIX)
    return Layout(_MAGIC + bytes([FORMAT]) + len(text).to_bytes(8, "little") + text, image)


def write(path: str, head: dict[str, Any], content: memoryview) -> int:
    """Create a file with this content and its trailer; return its size in bytes.

    The content is durable when this returns, but its directory is not synced.
    """
    with durable_files.open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        sums = BlockChecksums(content)
        try:
            durable_files.write_direct(fd, content)
        finally:
            crcs = sums.finish()
        trailer = make_trailer({**head, "size": len(content), "block": BLOCK, "crc32": crcs})
        durable_files.write_all(fd, memoryview(trailer))
        os.fsync(fd)
    return len(content) + len(trailer)


def make_trailer(fields: dict[str, Any]) -> bytes:
    """Return the trailer with these fields and the format, its SHA-256 and its length."""
    body = (
        json.dumps({"format": FORMAT, **fields}, separators=(",", ":"), allow_nan=False).encode("ascii")
        + b"\n"
    )
    return body + _seal(body) + _footer(len(body) + _SEAL_LENGTH)


def _seal(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode("ascii") + b"\n"


def _footer(length: int) -> bytes:
    return b"%0*d\n" % (_FOOTER_LENGTH - 1, length)


def read_manifest(path: str) -> PartManifest:
    """Return the content of a file's trailer.

    Raises Damaged, or UnknownFormat for a valid file in a format that this version cannot read.
    """
    with durable_files.open_regular_file(path) as fd:
        return _read_manifest(fd, path)


def _read_manifest(fd: int, path: str) -> PartManifest:
    length = os.fstat(fd).st_size
    footer = durable_files.read_at(fd, max(0, length - _FOOTER_LENGTH), min(length, _FOOTER_LENGTH))
    digits = footer[:-1]
    if len(footer) != _FOOTER_LENGTH or not digits.isdigit() or footer != _footer(int(digits)):
        raise Damaged("its end is missing")
    size = length - _FOOTER_LENGTH - int(digits)
    if size < _PREFIX or not _SEAL_LENGTH < int(digits) <= _MAX_TRAILER:
        raise Damaged("its end is not the end of a checkpoint")
    trailer = durable_files.read_at(fd, size, int(digits))
    body, seal = trailer[:-_SEAL_LENGTH], trailer[-_SEAL_LENGTH:]
    if seal != _seal(body):
        raise Damaged("its trailer does not match its own checksum")
    prefix = durable_files.read_at(fd, 0, _PREFIX)
    if prefix[:7] != _MAGIC:
        raise Damaged("its beginning is not the beginning of a checkpoint")
    fields = _parse_object(body, "trailer")
    number = fields.get("format", _UNNUMBERED)
    if type(number) is not int or number != prefix[7]:
        raise Damaged("its beginning and its trailer name different formats")
    if not OLDEST_FORMAT <= number <= FORMAT:
        _refuse_format(number, os.path.dirname(path))
    return _parse_trailer(fields, size)


def _refuse_format(number: int, directory: str) -> NoReturn:
    if number < OLDEST_FORMAT:
        raise UnknownFormat(
            "%s was written by an older version of Outlast (format %d; this version reads format %d and "
            "later): use the version that wrote it" % (directory, number, OLDEST_FORMAT)
        )
    parent, name = os.path.split(directory)
    hidden = os.path.join(parent, checkpoint_names.newer_name(name))
    raise UnknownFormat(
        "%s was written by a newer version of Outlast (format %d; this version reads up to %d): upgrade "
        "Outlast, or resume from the checkpoint before it:  mv %s %s"
        % (directory, number, FORMAT, shlex.quote(directory), shlex.quote(hidden))
    )


def _parse_trailer(raw: dict[str, Any], size: int) -> PartManifest:
    """Return the content of a trailer of a file with `size` bytes before it. Raises Damaged."""
    try:
        numbers = [raw[key] for key in ("step", "generation", "sequence", "rank", "world", "size", "block")]
        crcs = raw["crc32"]
        if any(type(number) is not int or not 0 <= number < 2**63 for number in [*numbers, *crcs]):
            raise Damaged("its trailer has an invalid number")
        step, generation, sequence, rank, world, stated_size, block = numbers
    except (TypeError, KeyError) as error:
        raise Damaged("its trailer cannot be parsed: %s" % error) from error
    if stated_size != size or block != BLOCK or len(crcs) != -(-size // BLOCK):
        raise Damaged("its trailer belongs to another file")
    if rank >= world or world > _MAX_WORLD:
        raise Damaged("its trailer has an invalid number of processes")
    return PartManifest(step, generation, sequence, rank, world, size, tuple(crcs))


def _parse_object(text: bytes, part: str) -> dict[str, Any]:
    """Return a JSON object. Raises Damaged, naming the part of the file."""
    try:
        found = json.loads(
            text,
            parse_int=_parse_short_int,
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_duplicates,
        )
    except (ValueError, RecursionError) as error:
        raise Damaged("its %s cannot be parsed: %s" % (part, error)) from error
    if type(found) is not dict:
        raise Damaged("its %s is not a JSON object" % part)
    return found


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _parse_short_int(text: str) -> int:
    if len(text) > 24:
        raise ValueError("a number is too long")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise ValueError("%s is not allowed" % text)


def read_state(path: str) -> tuple[tuple[Any, Any], PartManifest]:
    """Return the state, the kept files and the manifest, with every bit verified.

    Arrays are mapped from the file until they are written to. Raises Damaged, CheckpointError, OSError.
    """
    with durable_files.open_regular_file(path) as fd:
        manifest = _read_manifest(fd, path)
        check_blocks(fd, manifest.size, manifest.crcs, threads=MAX_THREADS)
        return _revive(MappedFile(fd, manifest.size)), manifest


def _revive(mapped: MappedFile) -> tuple[Any, Any]:
    content = mapped.whole
    begin = _PREFIX + int.from_bytes(content[8:_PREFIX], "little")
    if begin > len(content) or begin % ALIGNMENT:
        raise Damaged("its header does not have the length that its beginning states")
    raw = _parse_object(bytes(content[_PREFIX:begin]), "header")
    if not raw.keys() >= {"order", "tree", "files"} or raw["order"] not in ("little", "big"):
        raise Damaged("its header lacks the byte order, the tree or the files")
    mapped.begin, mapped.is_swapped = begin, raw["order"] != sys.byteorder
    state = unflatten(raw["tree"], mapped)
    return state, kept_files.check_contents(unflatten(raw["files"], mapped))


def verify(path: str) -> PartManifest:
    """Verify the whole file without building its state. Raises Damaged, CheckpointError, OSError."""
    with durable_files.open_regular_file(path) as fd:
        manifest = _read_manifest(fd, path)
        # The training needs the other cores.
        check_blocks(fd, manifest.size, manifest.crcs, threads=1)
    return manifest
