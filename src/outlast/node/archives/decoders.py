"""Streaming decompression: gzip, bzip2, xz, and zstd where this node has it.

As with the command-line programs, several compressed streams in a row count as one content, and zeros at the
end, which tapes and block devices leave, are ignored. Output comes in chunks of bounded size, however far a
small input expands.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Callable, Iterator, Protocol

from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.sink import BadArchive

#: The largest chunk of output, in bytes.
MAX_CHUNK = 1 << 20
#: Memory limit for xz, in bytes; its strongest usual preset needs 65 MiB to decompress.
_XZ_MEMORY = 256 << 20


class Decoder(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the output for the next input. Raises BadArchive."""

    def finish(self) -> Iterator[bytes]:
        """Yield the remaining output. Raises BadArchive if the input is truncated."""

    def close(self) -> None:
        """Release resources; safe to call twice."""


def create_decoder(kind: ArchiveFormat) -> Decoder:
    """Return a new decoder. Raises BadArchive, naming what is missing, if this node has none."""
    if kind is ArchiveFormat.GZIP:
        return StreamDecoder(kind, _Gzip, zlib.error)
    if kind is ArchiveFormat.BZIP2:
        bz2 = _import(kind, "bz2")
        return StreamDecoder(kind, bz2.BZ2Decompressor, OSError)
    if kind is ArchiveFormat.XZ:
        lzma = _import(kind, "lzma")
        return StreamDecoder(
            kind,
            lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
            lzma.LZMAError,
        )
    from outlast.node.archives import zstd

    return zstd.create_decoder()


def _import(kind: ArchiveFormat, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadArchive(
            "it is compressed with %s, and this node's Python was built without %r; compress it with gzip"
            % (kind.value, name)
        ) from error


class _Gzip:
    """zlib's decompressor with the interface of those in bz2 and lzma."""

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


class StreamDecoder:
    """A decoder for a sequence of compressed streams, optionally followed by zeros."""

    def __init__(
        self, kind: ArchiveFormat, new_decompressor: Callable[[], Any], *errors: type[Exception]
    ) -> None:
        """`errors` are the exceptions that the decompressor raises for invalid input."""
        self._kind = kind
        self._new_decompressor = new_decompressor
        self._errors = errors
        #: The decompressor of the stream that is open, or None between streams.
        self._stream: Any = None
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream is None:
                if self._has_begun:
                    data = data.lstrip(b"\0")
                    if not data:
                        return
                self._stream, self._has_begun = self._new_decompressor(), True
            yield from self._decompress(data)
            if not self._stream.eof:
                return
            data, self._stream = self._stream.unused_data, None

    def _decompress(self, data: bytes) -> Iterator[bytes]:
        stream = self._stream
        while True:
            try:
                chunk = stream.decompress(data, MAX_CHUNK)
            except self._errors as error:
                raise BadArchive("its %s compression is broken: %s" % (self._kind.value, error)) from error
            if chunk:
                yield chunk
            elif not data and not stream.needs_input and not stream.eof:
                raise BadArchive("its %s compression is broken: it yields no data" % self._kind.value)
            data = b""
            # A full chunk may leave more output inside although no input is pending.
            if stream.eof or (stream.needs_input and len(chunk) < MAX_CHUNK):
                return

    def finish(self) -> Iterator[bytes]:
        if self._stream is not None or not self._has_begun:
            raise BadArchive("it is truncated: its %s compression has no end" % self._kind.value)
        yield from ()

    def close(self) -> None:
        self._stream = None
