"""Digests: which ones to compute and compare, and their computation in a thread while bytes pass."""

from __future__ import annotations

import hashlib
import queue
import threading
import zlib
from dataclasses import dataclass, field
from typing import Callable, Mapping, Protocol, Union

from outlast.node.staging.fetch import crc32c
from outlast.node.staging.http.headers import digest_to_hex
from outlast.node.staging.item import ALGORITHMS

#: Who vouches for the expected digest.
PINNED, SOURCE, NOBODY = "pinned", "source", "nobody"

Data = Union[bytes, memoryview]


class Digest(Protocol):
    def update(self, data: Data) -> None: ...

    def hexdigest(self) -> str: ...


def normalise_digest(algorithm: str, text: str) -> str:
    """Return a digest in lower-case hexadecimal; `text` may be base64 as well. Raises ValueError."""
    if algorithm not in ALGORITHMS:
        raise ValueError("%s is not a known digest; known are %s" % (algorithm, ", ".join(ALGORITHMS)))
    digest = digest_to_hex(algorithm, text.strip())
    if not digest:
        raise ValueError("%r is not a valid %s digest" % (text, algorithm))
    return digest


@dataclass(frozen=True)
class DigestCheck:
    """The digests to compute, their expected values by algorithm, and who vouches for these."""

    algorithms: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)
    vouched: str = NOBODY

    def mismatch(self, results: Mapping[str, str]) -> str:
        """Return a phrase about the first digest that is not as expected; empty if all are."""
        for algorithm, value in self.expected.items():
            if results.get(algorithm) != value:
                return "its %s is %s, expected %s" % (algorithm, results.get(algorithm), value)
        return ""


def choose_check(pinned: Mapping[str, str], offered: Mapping[str, str], fallback: str) -> DigestCheck:
    """Check all pinned digests; else the strongest that the source offers; else only compute the fallback.

    An empty fallback stands for none.
    """
    if pinned:
        fast = tuple(name for name in ALGORITHMS if name in pinned and not _is_slow(name))
        # A slow digest is left out only if a stronger one is pinned as well.
        chosen = fast if fast and fast[0] in _stronger_than_crc32c() else tuple(pinned)
        return DigestCheck(chosen, {name: pinned[name] for name in chosen}, PINNED)
    ranked = sorted((name for name in ALGORITHMS if name in offered), key=_is_slow)
    if ranked:
        return DigestCheck((ranked[0],), {ranked[0]: offered[ranked[0]]}, SOURCE)
    return DigestCheck((fallback,) if fallback else ())


def _is_slow(algorithm: str) -> bool:
    return algorithm == "crc32c" and crc32c.is_slow()


def _stronger_than_crc32c() -> tuple[str, ...]:
    return ALGORITHMS[: ALGORITHMS.index("crc32c")]


class Digests:
    """Computes several digests of the same bytes."""

    def __init__(self, algorithms: tuple[str, ...]) -> None:
        self._states = [(name, _new_digest(name)) for name in algorithms]
        self._blocks: queue.SimpleQueue[tuple[Data, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def update(self, data: Data) -> None:
        """Hash `data` in the calling thread. Only before the first `update_in_background`."""
        for _, state in self._states:
            state.update(data)

    def update_in_background(self, data: Data, on_done: Callable[[], None]) -> None:
        """Let the thread hash `data` and then call `on_done`; until then the memory must not change."""
        if not self._states:
            on_done()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="digests", daemon=True)
            self._thread.start()
        self._blocks.put((data, on_done))

    def close(self) -> None:
        """Wait until all data is hashed, a few blocks at most, and end the thread."""
        if self._thread is not None:
            self._blocks.put(None)
            self._thread.join()
            self._thread = None

    def results(self) -> dict[str, str]:
        """Return the digests in hexadecimal, by algorithm. Raises what the thread raised."""
        self.close()
        if self._error is not None:
            raise self._error
        return {name: state.hexdigest() for name, state in self._states}

    def _run(self) -> None:
        while True:
            block = self._blocks.get()
            if block is None:
                return
            data, on_done = block
            try:
                if self._error is None:
                    self.update(data)
            except BaseException as error:  # `results` raises it; buffers must be released all the same
                self._error = error
            on_done()


class _Checksum:
    """A checksum from a function of the data and the value so far."""

    def __init__(self, function: Callable[[Data, int], int], start: int) -> None:
        self._function = function
        self._value = start

    def update(self, data: Data) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return "%08x" % self._value


def _new_digest(algorithm: str) -> Digest:
    if algorithm == "crc32c":
        return crc32c.new_digest()
    if algorithm == "crc32":
        return _Checksum(zlib.crc32, 0)
    if algorithm == "adler32":
        return _Checksum(zlib.adler32, 1)
    try:
        # Systems in FIPS mode allow md5 and sha1 only with this.
        return hashlib.new(algorithm, usedforsecurity=False)
    except TypeError:  # Python 3.8
        return hashlib.new(algorithm)
