"""What tests of data that arrives share: fetching a URL to a file, and reading a source to its end."""

from __future__ import annotations

import time
from pathlib import Path

from outlast.node.archives.sink import Block
from outlast.node.staging.fetch.fetch import fetch
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import Receipt
from outlast.node.staging.fetch.settings import Clock, FetchSettings
from outlast.node.staging.http.settings import HttpSettings
from outlast.node.staging.item import Wanted
from outlast.node.staging.sources.base import Body, Source
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens

NOBODY = Tokens()


def sources(url: str, ca_file: Path, tokens: Tokens = NOBODY, seconds: float = 10.0) -> list[Source]:
    limits = HttpSettings(
        connect_limit=seconds, first_byte_limit=seconds, stall_limit=seconds, ca_file=str(ca_file)
    )
    return sources_for(Wanted((url,)), limits, tokens)


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


def fetch_to(target: Path, wanted: Wanted, found: list[Source], dies_after: int | None = None) -> Receipt:
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
            clock=Clock(now=lambda: time.monotonic() + slept[0], sleep=sleep, chance=lambda: 0.5),
        )
    finally:
        sink.close()
