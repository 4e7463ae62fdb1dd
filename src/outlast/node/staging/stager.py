"""All data of an attempt, brought to its data directory before the training starts.

What arrives goes into a store and is only linked to from the data directory, so that the next attempt, and
any other on the same node or file system, finds it there, whole or half.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from outlast.node.archives.sink import Sink
from outlast.node.archives.unpacking import UnpackingSink
from outlast.node.pulse import silent
from outlast.node.staging import plugin_receipt
from outlast.node.staging.cache import in_place
from outlast.node.staging.cache.data_cache import DataCache, HeldEntry
from outlast.node.staging.cache.entry import size_of, write_entry
from outlast.node.staging.cache.evicting_sink import EvictingSink
from outlast.node.staging.fetch.fetch import fetch, identify
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import FetchProgress, Receipt
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.base import Source
from outlast.node.staging.sources.file_source import FileSource, path_of
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens


def sources_of(plan: DataPlan, wanted: DataItem) -> list[Source]:
    """Raises ValueError, in words for the user."""
    tokens = Tokens(plan.token_hosts, plan.token_file, plan.token_command)
    # Left a little before, so that another source's bytes are there by then.
    stall = plan.stall - min(1.0, 0.1 * plan.stall)
    return sources_for(wanted, HttpSettings(plan.stall, plan.stall, stall), tokens)


def settings_of(plan: DataPlan) -> FetchSettings:
    return FetchSettings(patience=plan.patience, connections=plan.connections)


@dataclass(frozen=True)
class StagedItem:
    """One item that is there. `receipt` is None where it was there before.

    What the scheduler brought has `carried`, which may be empty.
    """

    wanted: DataItem
    path: str
    receipt: Receipt | None
    carried: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        if self.carried is not None:
            return {"name": self.wanted.name, **self.carried, "carried": True}
        told = self.receipt.to_dict() if self.receipt else {"bytes": 0, "seconds": 0.0, "troubles": {}}
        return {"name": self.wanted.name, "found": self.receipt is None, **told}


@dataclass
class Stager:
    """`tell` hears of progress, with the item it belongs to, and `waiting` for whom an item waits."""

    plan: DataPlan
    directory: str
    store: DataCache
    pulse: Callable[[], None] = silent
    tell: Callable[[DataItem, FetchProgress], None] = lambda wanted, progress: None
    waiting: Callable[[DataItem, str], None] = lambda wanted, who: None
    _held: list[HeldEntry] = field(default_factory=list)

    def bring(self, wanted: DataItem) -> StagedItem:
        """Raises GivenUp, OSError (NoRoom), ValueError for a plan that cannot be carried out."""
        brought = plugin_receipt.told(path_of(wanted.urls[0])) if wanted.method == "native" else None
        if wanted.method in ("shared", "native") and wanted.unpack == "no":
            path = in_place.checked(wanted, self.store, self.pulse)
            self._place(wanted, path)
            return StagedItem(wanted, path, None, brought)
        sources = sources_of(self.plan, wanted)
        receipts: list[Receipt | None] = []

        def fill(place: str, pulse: Callable[[], None]) -> None:
            receipts.append(self._fetch(wanted, sources, identity, key, place, pulse))

        tell, settings = self._telling(wanted), settings_of(self.plan)
        identity = identify(wanted, sources, settings, tell, self.pulse)
        key = _key(wanted, identity)
        held = self.store.obtain(key, fill, self.pulse, lambda who: self.waiting(wanted, who))
        self._held.append(held)
        self._place(wanted, held.content)
        return StagedItem(wanted, held.content, receipts[0] if receipts else None, brought)

    def beat(self) -> None:
        """The data is in use as long as this is called now and then."""
        for held in self._held:
            held.mark.touch()

    def release(self) -> None:
        for held in self._held:
            held.release()
        self._held.clear()

    def _fetch(
        self,
        wanted: DataItem,
        sources: list[Source],
        identity: str,
        key: str,
        place: str,
        pulse: Callable[[], None],
    ) -> Receipt | None:
        """None: an earlier process had all of it, and was ended while it put it in its place."""
        content, settings = os.path.join(place, "content"), settings_of(self.plan)
        tell = self._telling(wanted)
        sink: Sink
        if wanted.unpack == "no":
            sink = PartFile(place, "content")
        else:
            sink = unpacking = UnpackingSink(content, wanted.name, wanted.unpack == "nested", pulse=pulse)
            unpacking.recover(identity)
        if os.path.lexists(content):  # it got that name only when it was whole and checked
            sink.close()
            write_entry(place, size_of(content, pulse), sources[0].name)
            return None
        # Another user's copy spares the network, and is checked as whatever comes from there.
        near: list[Source] = (
            [FileSource(path) for path in self.store.of_others(key)] if wanted.is_named_by_digest else []
        )
        roomy = EvictingSink(sink, self.store, settings.margin, pulse)
        try:
            receipt = fetch(wanted, [*near, *sources], roomy, settings, tell, pulse)
        finally:
            sink.close()
        most = max(receipt.sources, default="", key=lambda name: receipt.sources[name].bytes)
        write_entry(place, receipt.bytes, most)
        return receipt

    def _telling(self, wanted: DataItem) -> Callable[[FetchProgress], None]:
        return lambda progress: self.tell(wanted, progress)

    def _place(self, wanted: DataItem, content: str) -> None:
        """By links from the data directory; what is in the store is never written to."""
        if wanted.unpack == "no":
            _link(content, os.path.join(self._own_directory(wanted.to), wanted.name))
            return
        above, name = os.path.split(wanted.to)
        if name and not os.path.lexists(os.path.join(self._own_directory(above), name)):
            _link(content, os.path.join(self.directory, wanted.to))
        else:
            _link_all(content, self._own_directory(wanted.to))

    def _own_directory(self, to: str) -> str:
        """A directory of this attempt's, though an item before may have had it as a link into the store."""
        path = self.directory
        for part in to.split("/") if to else []:
            path = os.path.join(path, part)
            if os.path.islink(path):
                content = os.readlink(path)
                os.unlink(path)
                os.mkdir(path)
                _link_all(content, path)
        os.makedirs(path, exist_ok=True)
        return path


def _key(wanted: DataItem, identity: str) -> str:
    """What an item is called in the store."""
    if wanted.digests:
        key = "%s-%s" % (wanted.strongest, wanted.digests[wanted.strongest].lower())
        if not wanted.is_named_by_digest:
            key += "-" + _sha256([sorted(wanted.digests.items()), wanted.size, *wanted.urls])[:16]
    else:
        key = "unpinned-%s" % _sha256(identity)
    return key if wanted.unpack == "no" else "%s-%s" % (key, _UNPACKED[wanted.unpack])


_UNPACKED = {"yes": "unpacked", "nested": "nested"}


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _link_all(content: str, directory: str) -> None:
    for name in os.listdir(content):
        _link(os.path.join(content, name), os.path.join(directory, name))


def _link(content: str, goal: str) -> None:
    if os.path.islink(goal) and os.readlink(goal) == content:
        return  # an earlier leg of this attempt has made it
    try:
        os.symlink(content, goal)
    except FileExistsError:
        raise ValueError(
            "two entries of data: both bring %s; give one of them another `to:`" % os.path.basename(goal)
        ) from None
