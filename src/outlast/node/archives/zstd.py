"""zstd, which Python has from 3.14 on: its own module, the package `zstandard`, or the program `zstd`."""

from __future__ import annotations

import importlib
import os
import selectors
import shutil
import subprocess
from typing import Any, Iterator

from outlast.node.archives.decoders import PIECE, Decoder, Streams
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.sink import BadArchive

#: The longest that the program may take to read or write a byte, in seconds.
_PATIENCE = 120.0
#: A few bytes can stand for a block of 128 KiB: the package gives all of it at once.
_SIP = 512


def decoder() -> Decoder:
    """Raises BadArchive with what could be installed."""
    try:
        own = importlib.import_module("compression.zstd")
        return Streams(ArchiveFormat.ZSTD, own.ZstdDecompressor, own.ZstdError)
    except ImportError:
        pass  # a Python before 3.14, or one built without it
    try:
        package = importlib.import_module("zstandard")
        return Streams(ArchiveFormat.ZSTD, lambda: _Package(package), package.ZstdError)
    except ImportError:
        pass  # the program, then
    program = shutil.which("zstd")
    if program is None:
        raise BadArchive(
            "it is compressed with zstd, and this node has neither Python 3.14, nor the package `zstandard`, "
            "nor the program `zstd`; install one of them, or compress it with gzip or xz"
        )
    return _Program(program)


class _Package:
    """A decompressor of `zstandard` with the manners of those of bz2 and lzma."""

    def __init__(self, package: Any) -> None:
        self._inner = package.ZstdDecompressor().decompressobj()
        self._left = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        data = self._left + data
        pieces, size, at = [], 0, 0
        while at < len(data) and size < max_length and not self._inner.eof:
            piece = self._inner.decompress(data[at : at + _SIP])
            at += _SIP
            size += len(piece)
            pieces.append(piece)
        self._left = data[at:]
        return b"".join(pieces)

    @property
    def needs_input(self) -> bool:
        return not self._left

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data) + self._left


class _Program:
    """The program, between two pipes. It ends when its input ends, or with `close`."""

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [program, "-dcq"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        self._selector.register(self._input, selectors.EVENT_WRITE)
        try:
            while view:
                for key in self._ready():
                    if key is self._input:
                        try:
                            view = view[os.write(self._input.fileno(), view) :]
                        except BrokenPipeError:
                            raise self._broken() from None
                    else:
                        piece = os.read(self._output.fileno(), PIECE)
                        if not piece:
                            raise self._broken()
                        yield piece
        finally:
            self._selector.unregister(self._input)

    def finish(self) -> Iterator[bytes]:
        self._input.close()
        while True:
            self._ready()
            piece = os.read(self._output.fileno(), PIECE)
            if not piece:
                break
            yield piece
        if self._process.wait(_PATIENCE):
            raise self._broken()
        self.close()

    def _ready(self) -> list[object]:
        ready: list[object] = [key.fileobj for key, _ in self._selector.select(_PATIENCE)]
        if not ready:
            raise BadArchive("the program zstd did nothing for %d seconds" % _PATIENCE)
        return ready

    def _broken(self) -> BadArchive:
        self._process.kill()
        assert self._process.stderr
        said = self._process.stderr.read(300).decode("utf-8", "replace").strip()
        return BadArchive("its zstd compression is broken or cut: %s" % (said or "zstd ended early"))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_PATIENCE)
        for pipe in (self._input, self._output, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._selector.close()
