"""What proves that the bytes are the right ones, computed while they pass, by a thread of its own."""

from __future__ import annotations

import hashlib
import queue
import threading
import zlib
from dataclasses import dataclass, field
from typing import Callable, Mapping, Protocol, Union

from outlast.node.staging.fetch import crc32c
from outlast.node.staging.http.headers import hexadecimal
from outlast.node.staging.item import ALGORITHMS

#: Who says what the digest must be.
PINNED, SOURCE, NOBODY = "pinned", "source", "nobody"

Data = Union[bytes, memoryview]


class Digest(Protocol):
    def update(self, data: Data) -> None: ...

    def hexdigest(self) -> str: ...


def normalised(algorithm: str, text: str) -> str:
    """Hexadecimal in lower case, from that or from base64. Raises ValueError."""
    if algorithm not in ALGORITHMS:
        raise ValueError("%s is not a digest known here; known are %s" % (algorithm, ", ".join(ALGORITHMS)))
    found = hexadecimal(algorithm, text.strip())
    if not found:
        raise ValueError("%r is no %s digest" % (text, algorithm))
    return found


@dataclass(frozen=True)
class Proof:
    """Which digests are computed, what they must be, and who says so."""

    algorithms: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)
    vouched: str = NOBODY

    def contradiction(self, found: Mapping[str, str]) -> str:
        """In words; empty if there is none."""
        for algorithm, value in self.expected.items():
            if found.get(algorithm) != value:
                return "its %s is %s, and should be %s" % (algorithm, found.get(algorithm), value)
        return ""


def proof(pinned: Mapping[str, str], offered: Mapping[str, str], fallback: str) -> Proof:
    """All that is pinned; else the strongest that the source vouches for; else the fallback."""
    if pinned:
        quick = tuple(name for name in ALGORITHMS if name in pinned and not _slow(name))
        # What is slow here is left out only where something stronger is pinned as well.
        chosen = quick if quick and quick[0] in _stronger_than_crc32c() else tuple(pinned)
        return Proof(chosen, {name: pinned[name] for name in chosen}, PINNED)
    ranked = sorted((name for name in ALGORITHMS if name in offered), key=_slow)
    if ranked:
        return Proof((ranked[0],), {ranked[0]: offered[ranked[0]]}, SOURCE)
    return Proof((fallback,) if fallback else ())


def _slow(algorithm: str) -> bool:
    return algorithm == "crc32c" and crc32c.is_slow()


def _stronger_than_crc32c() -> tuple[str, ...]:
    return ALGORITHMS[: ALGORITHMS.index("crc32c")]


class Digests:
    def __init__(self, algorithms: tuple[str, ...]) -> None:
        self._states = [(name, _new(name)) for name in algorithms]
        self._blocks: queue.SimpleQueue[tuple[Data, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def replay(self, data: Data) -> None:
        """At once, by the calling thread; only before the first `feed`."""
        for _, state in self._states:
            state.update(data)

    def feed(self, data: Data, done: Callable[[], None]) -> None:
        """Hand it over; `done` is called, by the thread, when its memory may be used again."""
        if not self._states:
            done()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="digests", daemon=True)
            self._thread.start()
        self._blocks.put((data, done))

    def close(self) -> None:
        """Wait for what was fed, and end the thread. What is under way is a few blocks: it ends."""
        if self._thread is not None:
            self._blocks.put(None)
            self._thread.join()
            self._thread = None

    def results(self) -> dict[str, str]:
        self.close()
        if self._error is not None:
            raise self._error
        return {name: state.hexdigest() for name, state in self._states}

    def _work(self) -> None:
        while True:
            item = self._blocks.get()
            if item is None:
                return
            try:
                if self._error is None:
                    self.replay(item[0])
            except BaseException as error:  # told by `results`; the blocks must go round meanwhile
                self._error = error
            item[1]()


class _Rolling:
    def __init__(self, function: Callable[[Data, int], int], start: int) -> None:
        self._function = function
        self._value = start

    def update(self, data: Data) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return "%08x" % self._value


def _new(algorithm: str) -> Digest:
    if algorithm == "crc32c":
        return crc32c.new()
    if algorithm == "crc32":
        return _Rolling(zlib.crc32, 0)
    if algorithm == "adler32":
        return _Rolling(zlib.adler32, 1)
    try:
        # Some systems forbid md5 and sha1 for anything but this.
        return hashlib.new(algorithm, usedforsecurity=False)
    except TypeError:  # Python 3.8
        return hashlib.new(algorithm)
