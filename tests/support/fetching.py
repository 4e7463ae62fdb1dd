"""Fetches from misbehaving servers on a small scale: blocks of 4 KiB, and pauses that take no time."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlast.node.archives.sink import Block, Sink
from outlast.node.pulse import no_pulse
from outlast.node.staging.fetch.fetch import fetch, ignore_progress
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
SETTINGS = FetchSettings(block_size=BLOCK, block_count=2, segment_blocks=4, connections=1, margin=0)
#: Seconds without a byte after which a server has stalled: short, but long enough for a busy machine.
STALL = 0.15
CONTENT = seeded(100_000)
PATH = "/folder/a.bin"


def sha256(content: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(content).hexdigest()}


@dataclass
class FastClock:
    """Real time plus the pauses, which are recorded in `slept` instead of waited for."""

    slept: list[float] = field(default_factory=list)

    def clock(self) -> FetchClock:
        return FetchClock(
            now=lambda: time.monotonic() + sum(self.slept), sleep=self.slept.append, jitter=lambda: 0.5
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


class _CountedSource:
    """A source that reports how many bytes are read from it."""

    def __init__(self, source: Source, count: Callable[[int], None]) -> None:
        self.name, self.version = source.name, source.version
        self._source = source
        self._count = count

    def open(self, start: int, stop: int | None = None) -> Body:
        return _CountedBody(self._source.open(start, stop), self._count)


@dataclass
class Scene:
    """Servers with the same file, and a folder into which it is fetched."""

    folder: Path
    servers: Sequence[Misbehaving]
    clock: FastClock = field(default_factory=FastClock)
    #: Bytes read from bodies, over all fetches; without what the kernel received for a closed body.
    read: int = 0

    @property
    def target(self) -> Path:
        return self.folder / "a.bin"

    def sources(self) -> list[Source]:
        settings = HttpSettings(connect_timeout=5.0, first_byte_timeout=STALL, stall_timeout=STALL)
        return [
            _CountedSource(HttpSource(server.url(PATH), settings), self._count) for server in self.servers
        ]

    def _count(self, count: int) -> None:
        self.read += count

    def fetch(
        self,
        pinned: Mapping[str, str] | None = None,
        size: int | None = None,
        sink: Sink | None = None,
        pulse: Callable[[], None] = no_pulse,
        on_progress: Callable[[FetchProgress], None] = ignore_progress,
        **settings: Any,
    ) -> Receipt:
        """Fetch the file into `sink`, by default `target`. Raises what `fetch` raises."""
        item = DataItem(tuple(server.url(PATH) for server in self.servers), pinned or {}, size)
        chosen = sink or PartFile(str(self.folder), self.target.name)
        try:
            return fetch(
                item,
                self.sources(),
                chosen,
                replace(SETTINGS, **settings),
                on_progress,
                pulse,
                self.clock.clock(),
            )
        finally:
            chosen.close()

    def left(self) -> list[str]:
        """Return the names of the files in the folder."""
        return sorted(path.name for path in self.folder.iterdir())

    def starts(self, server: int = 0) -> list[int]:
        """Return the first byte of each body that was requested from a server."""
        return [request.start for request in self.servers[server].requests if request.method == "GET"]


def threads_of_fetches() -> list[str]:
    """Return the names of the threads that fetches have not ended."""
    names = {"receiver", "digests", "background call"}
    return [thread.name for thread in threading.enumerate() if thread.name in names]


NO_TOKENS = Tokens()


def sources(url: str, ca_file: Path, tokens: Tokens = NO_TOKENS, seconds: float = 10.0) -> list[Source]:
    """Return the sources of a URL; `seconds` is the limit of every wait."""
    settings = HttpSettings(
        connect_timeout=seconds, first_byte_timeout=seconds, stall_timeout=seconds, ca_file=str(ca_file)
    )
    return sources_for(DataItem((url,)), settings, tokens)


def read_all(body: Body, into: bytearray | None = None) -> bytes:
    """Read the whole body and close it. Raises SourceError; the bytes until then are in `into`."""
    buffer, found = memoryview(bytearray(100_000)), bytearray() if into is None else into
    try:
        while count := body.read_into(buffer):
            found += buffer[:count]
    finally:
        body.close()
    return bytes(found)


class Died(Exception):
    """Stands for the death of the process."""


class MortalPartFile(PartFile):
    """A part file whose process dies after `life` bytes."""

    def __init__(self, directory: str, name: str, life: int) -> None:
        super().__init__(directory, name)
        self._life = life

    def write(self, block: Block) -> None:
        super().write(block)
        self._life -= len(block)
        if self._life <= 0:
            raise Died


def fetch_to(target: Path, item: DataItem, sources: list[Source], dies_after: int | None = None) -> Receipt:
    """Fetch into `target` without waiting for pauses. Raises FetchFailed; Died after `dies_after` bytes."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    location = (str(target.parent), target.name)
    sink = PartFile(*location) if dies_after is None else MortalPartFile(*location, dies_after)
    try:
        return fetch(
            item,
            sources,
            sink,
            FetchSettings(connections=1),
            clock=FetchClock(now=lambda: time.monotonic() + slept[0], sleep=sleep, jitter=lambda: 0.5),
        )
    finally:
        sink.close()
