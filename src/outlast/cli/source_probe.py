"""What the sources of an experiment's data say when they are asked, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outlast.node.staging.errors import SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.item import ALGORITHMS, DataItem
from outlast.node.staging.sources.base import Source
from outlast.spec.data_methods import DataMethod

if TYPE_CHECKING:
    from outlast.cli.data_common import Means

#: Questions under way at a time.
_AT_ONCE = 8


@dataclass(frozen=True)
class ProbeReply:
    source: str
    #: None: it did not answer well, and `kind` and `detail` say how.
    version: FileVersion | None
    kind: str = ""
    detail: str = ""
    #: A token is meant for this host, and there is one.
    token: bool = False

    def to_dict(self) -> dict[str, Any]:
        said = self.version
        return {
            "source": self.source,
            "ok": said is not None,
            "kind": self.kind or None,
            "detail": self.detail,
            "size": said.size if said else None,
            "digests": dict(said.digests) if said else {},
            "token": self.token,
        }


@dataclass(frozen=True)
class Inquiry:
    wanted: DataItem
    way: DataMethod
    replies: tuple[ProbeReply, ...]
    #: What kept its sources from being asked.
    unasked: str = ""

    @property
    def size(self) -> int | None:
        said = (reply.version.size for reply in self.replies if reply.version is not None)
        return self.wanted.size if self.wanted.size is not None else next((one for one in said if one), None)

    @cached_property
    def problems(self) -> list[str]:
        if self.unasked:
            return [self.unasked]
        return list(self._problems())

    @property
    def notes(self) -> list[str]:
        wanted = self.wanted
        if wanted.digests or any(one.version and one.version.digests for one in self.replies):
            return []
        return ["nothing is pinned, and no source tells a digest: nothing would prove what comes"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.wanted.name,
            "method": self.way.method,
            "why": self.way.why,
            "size": self.size,
            "pinned": dict(self.wanted.digests),
            "sources": [reply.to_dict() for reply in self.replies],
            "problems": self.problems,
        }

    def _problems(self) -> Iterator[str]:
        first: ProbeReply | None = None
        for reply in self.replies:
            if reply.version is None:
                yield "%s: %s" % (reply.source, reply.detail)
                continue
            against = list(self._against_pins(reply.source, reply.version))
            yield from against
            if against:
                continue
            if first is None:
                first = reply
            elif first.version is not None and first.version.contradicts(reply.version):
                yield "%s has another file than %s" % (reply.source, first.source)

    def _against_pins(self, source: str, said: FileVersion) -> Iterator[str]:
        if self.wanted.size is not None and said.size not in (None, self.wanted.size):
            yield "%s has %s bytes, and %s are pinned" % (source, said.size, self.wanted.size)
        for name in ALGORITHMS:
            told, pinned = said.digests.get(name), self.wanted.digests.get(name)
            if told and pinned and told != pinned:
                yield "%s tells the %s %s, and %s is pinned" % (source, name, told, pinned)


def inquire(items: Sequence[DataItem], ways: Sequence[DataMethod], means: Means) -> list[Inquiry]:
    """All at the same time: one that hangs holds up no other. Each is bounded by the profile's `stall`."""
    found = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [(item, way, *_sources(item, means)) for item, way in zip(items, ways, strict=True)]
        futures = [[pool.submit(_ask, source, means) for source in sources] for _, _, sources, _ in asked]
        for (item, way, _, unasked), replies in zip(asked, futures, strict=True):
            found.append(Inquiry(item, way, tuple(reply.result() for reply in replies), unasked))
    return found


def _sources(item: DataItem, means: Means) -> tuple[list[Source], str]:
    try:
        return means.sources(item), ""
    except ValueError as error:
        return [], str(error)


def _ask(source: Source, means: Means) -> ProbeReply:
    try:
        said = source.version()
    except SourceError as trouble:
        return ProbeReply(source.name, None, trouble.kind.value, trouble.detail)
    return ProbeReply(source.name, said, token=_has_token(source.name, means))


def _has_token(name: str, means: Means) -> bool:
    """Only https hosts are ever sent one."""
    parts = urlsplit(name)
    if parts.scheme != "https" or not parts.hostname:
        return False
    try:
        return means.tokens.token_for(parts.hostname, parts.port or 443) is not None
    except SourceError:
        return False
