"""zstd decompression by whichever this node has.

Python's own module (from 3.14 on), the package `zstandard`, or the program `zstd`, in this order.
"""

from __future__ import annotations

import importlib
import os
import selectors
import shutil
import subprocess
from typing import Any, Iterator

from outlast.node.archives.decoders import MAX_CHUNK, Decoder, StreamDecoder
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.sink import BadArchive

#: Seconds within which the program must read or write something.
_TIMEOUT = 120.0
#: Input bytes per call: the package cannot limit its output, and a few bytes can expand to 128 KiB.
_INPUT_CHUNK = 512


def create_decoder() -> Decoder:
    """Return a new decoder. Raises BadArchive, naming what could be installed, if there is none."""
    try:
        builtin = importlib.import_module("compression.zstd")
        return StreamDecoder(ArchiveFormat.ZSTD, builtin.ZstdDecompressor, builtin.ZstdError)
    except ImportError:
        pass  # a Python before 3.14, or one built without it
    try:
        package = importlib.import_module("zstandard")
        return StreamDecoder(ArchiveFormat.ZSTD, lambda: _Package(package), package.ZstdError)
    except ImportError:
        pass  # the package is not installed
    program = shutil.which("zstd")
    if program is None:
        raise BadArchive(
            "it is compressed with zstd, and this node has neither Python 3.14, nor the package `zstandard`, "
            "nor the program `zstd`; install one of them, or compress it with gzip or xz"
        )
    return _Program(program)


class _Package:
    """A decompressor of `zstandard` with the interface of those in bz2 and lzma."""

    def __init__(self, package: Any) -> None:
        self._inner = package.ZstdDecompressor().decompressobj()
        self._pending = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        data = self._pending + data
        chunks, size, at = [], 0, 0
        while at < len(data) and size < max_length and not self._inner.eof:
            chunk = self._inner.decompress(data[at : at + _INPUT_CHUNK])
            at += _INPUT_CHUNK
            size += len(chunk)
            chunks.append(chunk)
        self._pending = data[at:]
        return b"".join(chunks)

    @property
    def needs_input(self) -> bool:
        return not self._pending

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data) + self._pending


class _Program:
    """The program `zstd` between two pipes. It ends when its input ends, or with `close`."""

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
                for key in self._wait_ready():
                    if key is self._input:
                        try:
                            view = view[os.write(self._input.fileno(), view) :]
                        except BrokenPipeError:
                            raise self._failure() from None
                    else:
                        chunk = os.read(self._output.fileno(), MAX_CHUNK)
                        if not chunk:
                            raise self._failure()
                        yield chunk
        finally:
            self._selector.unregister(self._input)

    def finish(self) -> Iterator[bytes]:
        self._input.close()
        while True:
            self._wait_ready()
            chunk = os.read(self._output.fileno(), MAX_CHUNK)
            if not chunk:
                break
            yield chunk
        if self._process.wait(_TIMEOUT):
            raise self._failure()
        self.close()

    def _wait_ready(self) -> list[object]:
        ready: list[object] = [key.fileobj for key, _ in self._selector.select(_TIMEOUT)]
        if not ready:
            raise BadArchive("the program zstd made no progress for %d seconds" % _TIMEOUT)
        return ready

    def _failure(self) -> BadArchive:
        self._process.kill()
        assert self._process.stderr
        message = self._process.stderr.read(300).decode("utf-8", "replace").strip()
        return BadArchive(
            "its zstd compression is broken or truncated: %s" % (message or "zstd exited early")
        )

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_TIMEOUT)
        for pipe in (self._input, self._output, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._selector.close()
