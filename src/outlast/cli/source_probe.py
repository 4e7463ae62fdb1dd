"""Probes of the sources of an experiment's data, and the problems they reveal. Fetches nothing."""

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
    from outlast.cli.data_common import DataAccess

#: Probes that run at the same time.
_PARALLEL_PROBES = 8


@dataclass(frozen=True)
class ProbeReply:
    """The response of one source."""

    source: str
    #: None if the probe failed; `kind` and `detail` then describe the error.
    version: FileVersion | None
    kind: str = ""
    detail: str = ""
    #: True if there is a token for this host.
    token: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        version = self.version
        return {
            "source": self.source,
            "ok": version is not None,
            "kind": self.kind or None,
            "detail": self.detail,
            "size": version.size if version else None,
            "digests": dict(version.digests) if version else {},
            "token": self.token,
        }


@dataclass(frozen=True)
class ItemProbe:
    """The responses of all sources of one item of data."""

    item: DataItem
    method: DataMethod
    replies: tuple[ProbeReply, ...]
    #: Why the sources could not be probed.
    not_probed: str = ""

    @property
    def size(self) -> int | None:
        """The pinned size, else the first that a source reports."""
        sizes = (reply.version.size for reply in self.replies if reply.version is not None)
        return self.item.size if self.item.size is not None else next((one for one in sizes if one), None)

    @cached_property
    def problems(self) -> list[str]:
        if self.not_probed:
            return [self.not_probed]
        return list(self._problems())

    @property
    def notes(self) -> list[str]:
        if self.item.digests or any(one.version and one.version.digests for one in self.replies):
            return []
        return ["no digest is pinned, and no source reports one: the file would not be verified"]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.item.name,
            "method": self.method.method,
            "why": self.method.why,
            "size": self.size,
            "pinned": dict(self.item.digests),
            "sources": [reply.to_dict() for reply in self.replies],
            "problems": self.problems,
        }

    def _problems(self) -> Iterator[str]:
        first: ProbeReply | None = None
        for reply in self.replies:
            if reply.version is None:
                yield "%s: %s" % (reply.source, reply.detail)
                continue
            mismatches = list(self._pin_mismatches(reply.source, reply.version))
            yield from mismatches
            if mismatches:
                continue
            if first is None:
                first = reply
            elif first.version is not None and first.version.contradicts(reply.version):
                yield "%s has a different file than %s" % (reply.source, first.source)

    def _pin_mismatches(self, source: str, version: FileVersion) -> Iterator[str]:
        if self.item.size is not None and version.size not in (None, self.item.size):
            yield "%s has %s bytes, but %s are pinned" % (source, version.size, self.item.size)
        for name in ALGORITHMS:
            reported, pinned = version.digests.get(name), self.item.digests.get(name)
            if reported and pinned and reported != pinned:
                yield "%s reports %s %s, but %s is pinned" % (source, name, reported, pinned)


def probe_items(
    items: Sequence[DataItem], methods: Sequence[DataMethod], access: DataAccess
) -> list[ItemProbe]:
    """Probe all sources at the same time; each is limited by the profile's `stall`."""
    found = []
    with ThreadPoolExecutor(_PARALLEL_PROBES) as pool:
        planned = [
            (item, method, *_sources(item, access)) for item, method in zip(items, methods, strict=True)
        ]
        futures = [
            [pool.submit(_probe, source, access) for source in sources] for _, _, sources, _ in planned
        ]
        for (item, method, _, not_probed), replies in zip(planned, futures, strict=True):
            found.append(ItemProbe(item, method, tuple(reply.result() for reply in replies), not_probed))
    return found


def _sources(item: DataItem, access: DataAccess) -> tuple[list[Source], str]:
    """Return the sources of an item, or none and the reason."""
    try:
        return access.sources(item), ""
    except ValueError as error:
        return [], str(error)


def _probe(source: Source, access: DataAccess) -> ProbeReply:
    try:
        version = source.version()
    except SourceError as error:
        return ProbeReply(source.name, None, error.kind.value, error.detail)
    return ProbeReply(source.name, version, token=_has_token(source.name, access))


def _has_token(name: str, access: DataAccess) -> bool:
    """Return True if there is a token for this URL's host; tokens are only sent over https."""
    parts = urlsplit(name)
    if parts.scheme != "https" or not parts.hostname:
        return False
    try:
        return access.tokens.token_for(parts.hostname, parts.port or 443) is not None
    except SourceError:
        return False
