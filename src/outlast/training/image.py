"""One checkpoint directory: `state.bin` with all buffers and `manifest.json`, which vouches for every bit.

`manifest.json` is one line of JSON and a last line with the SHA-256 of all before it. The JSON holds the
tree, the size of `state.bin` and a CRC32 for each of its blocks, so a cut or a flipped bit in either file
is found. `manifest.json` is written last: without it the directory is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from typing import Any

from outlast.training import files
from outlast.training.arrays import Source
from outlast.training.errors import CheckpointError, Damaged
from outlast.training.tree import Image, aligned, put_together

FORMAT = 1
BLOCK = 1 << 20
STATE = "state.bin"
MANIFEST = "manifest.json"
_SEAL = b"sha256 "
_SEAL_LENGTH = len(_SEAL) + 64 + 1


@dataclass(frozen=True)
class Manifest:
    """What a sealed manifest says."""

    step: int
    generation: int
    sequence: int
    size: int
    crcs: tuple[int, ...]
    tree: Any
    #: How many bytes the manifest itself has.
    length: int


def write(directory: str, head: dict[str, Any], image: Image) -> int:
    """Make the directory and all in it durable (its name is the caller's to make so); its size in bytes."""
    os.mkdir(directory)
    with files.descriptor(os.path.join(directory, STATE), os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        writer = _BlockWriter(fd)
        for offset, buffer in image.buffers:
            writer.pad(offset)
            writer.write(buffer.fetch())
        crcs = writer.finish()
        os.fsync(fd)
    if writer.position != image.size:
        raise Damaged("the state changed its size while it was written")
    described = {**head, "state": {"size": image.size, "block": BLOCK, "crc32": crcs}, "tree": image.tree}
    line = json.dumps({"format": FORMAT, **described}, separators=(",", ":"), allow_nan=False)
    body = line.encode("ascii") + b"\n"
    sealed = body + _seal(body)
    files.write_file(os.path.join(directory, MANIFEST), sealed)
    files.sync_directory(directory)
    return image.size + len(sealed)


def _seal(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode("ascii") + b"\n"


class _BlockWriter:
    """Blocks of a file with a checksum each. Whole blocks are written from where they lie, without a copy."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial = bytearray()
        self._crcs: list[int] = []
        self.position = 0

    def pad(self, offset: int) -> None:
        self.write(memoryview(bytes(offset - self.position)))

    def write(self, content: memoryview) -> None:
        self.position += len(content)
        while len(content):
            if not self._partial and len(content) >= BLOCK:
                self._flush(content[:BLOCK])
                content = content[BLOCK:]
                continue
            piece = content[: BLOCK - len(self._partial)]
            self._partial += piece
            content = content[len(piece) :]
            if len(self._partial) == BLOCK:
                self._flush_partial()

    def finish(self) -> list[int]:
        if self._partial:
            self._flush_partial()
        return self._crcs

    def _flush_partial(self) -> None:
        self._flush(memoryview(bytes(self._partial)))
        self._partial.clear()

    def _flush(self, block: memoryview) -> None:
        self._crcs.append(zlib.crc32(block))
        files.write_all(self._fd, block)


def read_manifest(directory: str) -> Manifest:
    """Raises Damaged, or CheckpointError for a whole manifest that this version cannot understand."""
    content = files.read_file(os.path.join(directory, MANIFEST))
    body, seal = content[:-_SEAL_LENGTH], content[-_SEAL_LENGTH:]
    if not body or seal != _seal(body):
        raise Damaged("%s does not match its own checksum" % MANIFEST)
    try:
        raw = json.loads(body, parse_int=_short_int, parse_constant=_no_constant)
        if raw["format"] != FORMAT:
            raise CheckpointError(
                "%s has format %.20r, and this Outlast reads format %d; use the version that wrote it"
                % (directory, raw["format"], FORMAT)
            )
        state = raw["state"]
        numbers = [raw["step"], raw["generation"], raw["sequence"], state["size"], *state["crc32"]]
        if any(type(number) is not int or number < 0 for number in numbers) or state["block"] != BLOCK:
            raise Damaged("%s has something else where a number belongs" % MANIFEST)
        step, generation, sequence, size, *crcs = numbers
        return Manifest(step, generation, sequence, size, tuple(crcs), raw["tree"], len(content))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged("%s cannot be understood: %s" % (MANIFEST, error)) from error


def _short_int(text: str) -> int:
    if len(text) > 24:
        raise ValueError("a number too long")
    return int(text)


def _no_constant(text: str) -> float:
    raise ValueError("%s is no number here" % text)


def read_state(directory: str, manifest: Manifest) -> Any:
    """The state, every bit of it checked. Raises Damaged."""
    with files.regular_file(os.path.join(directory, STATE)) as fd:
        reader = _BlockReader(fd, manifest)
        state = put_together(manifest.tree, reader)
        reader.finish()
        return state


def verify(directory: str) -> Manifest:
    """Read the whole checkpoint back without building its state. Raises Damaged."""
    manifest = read_manifest(directory)
    with files.regular_file(os.path.join(directory, STATE)) as fd:
        _BlockReader(fd, manifest).skip_to_end()
    return manifest


class _BlockReader(Source):
    """Reads `state.bin` once, from front to end, into the arrays, and checks each block on the way."""

    def __init__(self, fd: int, manifest: Manifest) -> None:
        self._fd = fd
        self._size, self._crcs = manifest.size, manifest.crcs
        self._position = 0
        self._crc = 0
        real = os.fstat(fd).st_size
        if real != self._size:
            raise Damaged("%s has %d bytes instead of %d" % (STATE, real, self._size))
        if len(self._crcs) != -(-self._size // BLOCK):
            raise Damaged("%s has not one checksum for each block" % MANIFEST)

    def expect(self, offset: int, nbytes: int) -> None:
        numbers = type(offset) is int and type(nbytes) is int and nbytes >= 0
        if not numbers or offset != aligned(self._position) or offset + nbytes > self._size:
            raise Damaged("a buffer is not where the tree says")

    def take(self, offset: int, target: memoryview) -> None:
        self.expect(offset, len(target))
        self._read(memoryview(bytearray(offset - self._position)))
        self._read(target)

    def skip_to_end(self) -> None:
        scratch = memoryview(bytearray(min(BLOCK, self._size)))
        while self._position < self._size:
            self._read(scratch[: self._size - self._position])

    def finish(self) -> None:
        if self._position != self._size:
            raise Damaged("%s has more in it than the tree" % STATE)

    def _read(self, target: memoryview) -> None:
        while len(target):
            piece = target[: BLOCK - self._position % BLOCK]
            files.read_into(self._fd, piece)
            self._crc = zlib.crc32(piece, self._crc)
            self._position += len(piece)
            target = target[len(piece) :]
            if self._position % BLOCK == 0 or self._position == self._size:
                index = (self._position - 1) // BLOCK
                if self._crc != self._crcs[index]:
                    raise Damaged("block %d of %s does not match its checksum" % (index, STATE))
                self._crc = 0
