"""A fetch from servers that misbehave, in small: blocks of 4 KiB, and pauses that nobody waits for."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlast.node.archives.sink import Block, Sink
from outlast.node.pulse import silent
from outlast.node.staging.fetch.fetch import fetch, untold
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import FetchProgress, Receipt
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Body, Source
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens
from servers.behaviour import seeded
from servers.misbehaving import Misbehaving

BLOCK = 4096
SETTINGS = FetchSettings(block=BLOCK, blocks=2, segment_blocks=4, connections=1, margin=0)
#: A server that is silent for so long has stalled. Short, and long enough for a busy machine.
STALL = 0.15
CONTENT = seeded(100_000)
PATH = "/folder/a.bin"


def sha256(content: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(content).hexdigest()}


@dataclass
class FastClock:
    """Real time, and what would have been slept."""

    slept: list[float] = field(default_factory=list)

    def clock(self) -> FetchClock:
        return FetchClock(
            now=lambda: time.monotonic() + sum(self.slept), sleep=self.slept.append, chance=lambda: 0.5
        )


class _CountedBody:
    def __init__(self, body: Body, count: Callable[[int], None]) -> None:
        self.start, self.version = body.start, body.version
        self.close = body.close
        self._body = body
        self._count = count

    def read_into(self, buffer: memoryview) -> int:
        got = self._body.read_into(buffer)
        self._count(got)
        return got


class _Counted:
    """A source, and how many bytes were read from it."""

    def __init__(self, source: Source, count: Callable[[int], None]) -> None:
        self.name, self.version = source.name, source.version
        self._source = source
        self._count = count

    def open(self, start: int, stop: int | None = None) -> Body:
        return _CountedBody(self._source.open(start, stop), self._count)


@dataclass
class Scene:
    folder: Path
    servers: Sequence[Misbehaving]
    clock: FastClock = field(default_factory=FastClock)
    #: Bytes of bodies, over all fetches; without what a kernel has received for a body that was closed.
    read: int = 0

    @property
    def target(self) -> Path:
        return self.folder / "a.bin"

    def sources(self) -> list[Source]:
        limits = HttpSettings(connect_limit=5.0, first_byte_limit=STALL, stall_limit=STALL)
        return [_Counted(HttpSource(server.url(PATH), limits), self._count) for server in self.servers]

    def _count(self, count: int) -> None:
        self.read += count

    def fetch(
        self,
        pinned: Mapping[str, str] | None = None,
        size: int | None = None,
        sink: Sink | None = None,
        pulse: Callable[[], None] = silent,
        tell: Callable[[FetchProgress], None] = untold,
        **settings: Any,
    ) -> Receipt:
        """By default into `target`. Raises what fetch raises."""
        wanted = DataItem(tuple(server.url(PATH) for server in self.servers), pinned or {}, size)
        chosen = sink or PartFile(str(self.folder), self.target.name)
        try:
            return fetch(
                wanted,
                self.sources(),
                chosen,
                replace(SETTINGS, **settings),
                tell,
                pulse,
                self.clock.clock(),
            )
        finally:
            chosen.close()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def starts(self, server: int = 0) -> list[int]:
        """Where the bodies that it was asked for were to begin."""
        return [request.start for request in self.servers[server].requests if request.method == "GET"]


def threads_of_fetches() -> list[str]:
    names = {"receiver", "digests", "beside"}
    return [thread.name for thread in threading.enumerate() if thread.name in names]


NOBODY = Tokens()


def sources(url: str, ca_file: Path, tokens: Tokens = NOBODY, seconds: float = 10.0) -> list[Source]:
    limits = HttpSettings(
        connect_limit=seconds, first_byte_limit=seconds, stall_limit=seconds, ca_file=str(ca_file)
    )
    return sources_for(DataItem((url,)), limits, tokens)


def read_all(body: Body, into: bytearray | None = None) -> bytes:
    """Raises Trouble; what has come until then is in `into`."""
    buffer, found = memoryview(bytearray(100_000)), bytearray() if into is None else into
    try:
        while count := body.read_into(buffer):
            found += buffer[:count]
    finally:
        body.close()
    return bytes(found)


class Died(Exception):
    """Stands for the end of the process."""


class MortalPartFile(PartFile):
    """Takes so many bytes, and then its process dies."""

    def __init__(self, directory: str, name: str, life: int) -> None:
        super().__init__(directory, name)
        self._life = life

    def write(self, block: Block) -> None:
        super().write(block)
        self._life -= len(block)
        if self._life <= 0:
            raise Died


def fetch_to(target: Path, wanted: DataItem, found: list[Source], dies_after: int | None = None) -> Receipt:
    """Pauses are counted and not waited for. Raises GivenUp, and Died after so many bytes."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    place = (str(target.parent), target.name)
    sink = PartFile(*place) if dies_after is None else MortalPartFile(*place, dies_after)
    try:
        return fetch(
            wanted,
            found,
            sink,
            FetchSettings(connections=1),
            clock=FetchClock(now=lambda: time.monotonic() + slept[0], sleep=sleep, chance=lambda: 0.5),
        )
    finally:
        sink.close()
