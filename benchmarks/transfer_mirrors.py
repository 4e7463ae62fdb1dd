"""A source that stalls beside one that does not, and a server that holds each connection down."""

from __future__ import annotations

import functools
import statistics
import time

from transfer_peers import Download, with_python
from transfer_scene import GIB, MB, MIB, Scene
from verdicts import Goal, Row, in_turns, ratio

from outlast.node.staging.fetch.fetch import fetch
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Body, Source
from outlast.node.staging.sources.http_source import HttpSource
from servers.behaviour import Behaviour, seeded
from servers.misbehaving import Misbehaving

STALLS_AFTER, STALL_SIZE = 20 * MIB, 64 * MIB
HTTP = HttpSettings()
NAME = "large.bin"
#: Bytes a second for one connection, and how many bytes are worth more of them.
CAP, CAPPED_SIZE = 90 * MB, 2 * GIB
SMOKE = {
    "STALLS_AFTER": MIB // 2,
    "STALL_SIZE": MIB,
    "HTTP": HttpSettings(stall_timeout=0.5),
    "CAP": 4 * MB,
    "CAPPED_SIZE": 4 * MIB,
}


class _TimedBody:
    def __init__(self, body: Body, source: _Timed) -> None:
        self.start, self.version, self.close = body.start, body.version, body.close
        self._body = body
        self._source = source

    def read_into(self, buffer: memoryview) -> int:
        count = self._body.read_into(buffer)
        if count:
            self._source.last = time.monotonic()
            self._source.first = self._source.first or self._source.last
        return count


class _Timed:
    """A source, and when its first and its last byte came."""

    def __init__(self, source: Source) -> None:
        self.name, self.version = source.name, source.version
        self.first = self.last = 0.0
        self._source = source

    def open(self, start: int, stop: int | None = None) -> Body:
        return _TimedBody(self._source.open(start, stop), self)


def stall(scene: Scene) -> list[Row]:
    """Seconds from the last byte of a source to the first of its mirror, with default settings."""
    files = {"/a.bin": seeded(STALL_SIZE)}
    with Misbehaving(files) as stalling, Misbehaving(files) as good:
        stalling.always(Behaviour(stall_after=STALLS_AFTER))
        urls = tuple(server.url("/a.bin") for server in (stalling, good))
        first, second = (_Timed(HttpSource(url, HTTP)) for url in urls)
        sink = PartFile(str(scene.folder), "a.bin")
        try:
            receipt = fetch(DataItem(urls), [first, second], sink)
        finally:
            sink.close()
    assert (scene.folder / "a.bin").read_bytes() == files["/a.bin"], "not the bytes that were served"
    beside = "; ".join(
        "%s: %d, %d bytes fetched twice" % (kind.value, cost.count, cost.bytes)
        for kind, cost in receipt.costs.by_kind.items()
    )
    return [
        Row(
            "from the stall to the mirror's first byte",
            second.first - first.last,
            "s",
            Goal(most=15.0),
            beside,
        )
    ]


def capped(scene: Scene) -> list[Row]:
    """What several connections bring where the server holds each of them down."""
    with scene.nginx(NAME, CAPPED_SIZE, cap=CAP) as server:
        url = server.url("/capped/" + NAME, tls=False)
        cases = {
            "one": functools.partial(with_python, "outlast", url, "--connections", "1"),
            "four": functools.partial(with_python, "outlast", url),
        }
        found = in_turns(cases, 1)
    return [
        _row("rate of the second half, four connections at most", found, "late_rate", Goal(least=3.0)),
        _row("rate of the whole, the time to find out included", found, "", None),
    ]


def _row(title: str, found: dict[str, list[Download]], key: str, goal: Goal | None) -> Row:
    rates = {
        name: [one.told.get(key) or CAPPED_SIZE / one.told["wall"] for one in some]
        for name, some in found.items()
    }
    medians = {name: statistics.median(some) / MB for name, some in rates.items()}
    beside = "%.0f MB/s → %.0f MB/s" % (medians["one"], medians["four"])
    return Row(title, ratio(rates["four"], rates["one"]), "× one", goal, beside)
