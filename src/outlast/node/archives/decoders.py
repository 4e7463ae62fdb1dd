"""Decompression of what is pushed in: gzip, bzip2, xz, and zstd where this node has it.

Several streams one after the other are one content, as for the programs of these names, and so are zeros at
the end, which tapes and block devices leave. Output comes in pieces of bounded size, however much a small
input stands for.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Callable, Iterator, Protocol

from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.sink import BadArchive

#: At most so much comes out at once.
PIECE = 1 << 20
#: What xz may need to decompress; its strongest usual setting needs 65 MiB.
_MEMORY = 256 << 20


class Decoder(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises BadArchive."""

    def finish(self) -> Iterator[bytes]:
        """What is left. Raises BadArchive if the input is cut."""

    def close(self) -> None:
        """Release what it holds; safe to call twice."""


def decoder(kind: ArchiveFormat) -> Decoder:
    """Raises BadArchive, with what is missing, if this Python cannot do it."""
    if kind is ArchiveFormat.GZIP:
        return Streams(kind, _Gzip, zlib.error)
    if kind is ArchiveFormat.BZIP2:
        bz2 = _module("bz2", kind)
        return Streams(kind, bz2.BZ2Decompressor, OSError)
    if kind is ArchiveFormat.XZ:
        lzma = _module("lzma", kind)
        return Streams(
            kind, lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY), lzma.LZMAError
        )
    from outlast.node.archives import zstd

    return zstd.decoder()


def _module(name: str, kind: ArchiveFormat) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadArchive(
            "it is compressed with %s, and this node's Python was built without %r; compress it with gzip"
            % (kind.value, name)
        ) from error


class _Gzip:
    """zlib's decompressor with the manners of those of bz2 and lzma."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class Streams:
    """One compressed stream after the other, until nothing or only zeros are left."""

    def __init__(self, kind: ArchiveFormat, new: Callable[[], Any], *errors: type[Exception]) -> None:
        self._kind = kind
        self._new = new
        self._errors = errors
        self._stream: Any = None
        self._any = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream is None:
                if self._any:
                    data = data.lstrip(b"\0")
                    if not data:
                        return
                self._stream, self._any = self._new(), True
            yield from self._one(data)
            if not self._stream.eof:
                return
            data, self._stream = self._stream.unused_data, None

    def _one(self, data: bytes) -> Iterator[bytes]:
        stream = self._stream
        while True:
            try:
                piece = stream.decompress(data, PIECE)
            except self._errors as error:
                raise BadArchive("its %s compression is broken: %s" % (self._kind.value, error)) from error
            if piece:
                yield piece
            elif not data and not stream.needs_input and not stream.eof:
                raise BadArchive("its %s compression leads nowhere" % self._kind.value)
            data = b""
            # A full piece may leave more inside although no input is missing.
            if stream.eof or (stream.needs_input and len(piece) < PIECE):
                return

    def finish(self) -> Iterator[bytes]:
        if self._stream is not None or not self._any:
            raise BadArchive("it is cut: its %s compression has no end" % self._kind.value)
        yield from ()

    def close(self) -> None:
        self._stream = None
