"""Staging of one item: from its sources through the cache to links in the data directory.

The content is kept in the cache and only linked from the data directory, so that the next attempt, and any
other on the same node or file system, finds it there, complete or unfinished. Only an item that is requested
as writable is copied, to a directory beside the data directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from outlast.node.archives.limits import limits_for_stranger
from outlast.node.archives.sink import Sink
from outlast.node.archives.unpacking import UnpackingSink
from outlast.node.pulse import no_pulse
from outlast.node.staging import plugin_receipt
from outlast.node.staging.cache import in_place
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.cache.entry import total_size, write_entry
from outlast.node.staging.cache.evicting_sink import EvictingSink
from outlast.node.staging.cache.held_entry import HeldEntry
from outlast.node.staging.fetch.fetch import fetch, identify
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import FetchProgress, Receipt
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.base import Source
from outlast.node.staging.sources.file_source import path_of
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens
from outlast.node.staging.writable_copy import make_copy


def sources_from_plan(plan: DataPlan, item: DataItem) -> list[Source]:
    """Return the sources of an item, with the tokens and timeouts of the plan.

    Raises ValueError, with a message for the user.
    """
    tokens = Tokens(plan.token_hosts, plan.token_file, plan.token_command)
    # A little shorter, so that another source can deliver before `plan.stall` is over.
    stall = plan.stall - min(1.0, 0.1 * plan.stall)
    return sources_for(item, HttpSettings(plan.stall, plan.stall, stall), tokens)


def settings_from_plan(plan: DataPlan) -> FetchSettings:
    return FetchSettings(patience=plan.patience, connections=plan.connections)


@dataclass(frozen=True)
class StagedItem:
    """An item that is in the data directory.

    `receipt` is None if nothing had to be fetched. `plugin_costs` is the receipt of the scheduler's transfer
    and may be empty; it is None if the scheduler did not transfer the item.
    """

    item: DataItem
    path: str
    receipt: Receipt | None
    plugin_costs: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        if self.plugin_costs is not None:
            return {"name": self.item.name, **self.plugin_costs, "carried": True}
        costs = self.receipt.to_dict() if self.receipt else {"bytes": 0, "seconds": 0.0, "troubles": {}}
        return {"name": self.item.name, "found": self.receipt is None, **costs}


@dataclass
class Stager:
    """Stages items into `directory` and keeps them in use until `release`.

    `on_progress` is called with each item's progress, `on_wait` with the process that an item waits for.
    """

    plan: DataPlan
    directory: str
    cache: DataCache
    pulse: Callable[[], None] = no_pulse
    on_progress: Callable[[DataItem, FetchProgress], None] = lambda item, progress: None
    on_wait: Callable[[DataItem, str], None] = lambda item, who: None
    _held: list[HeldEntry] = field(default_factory=list)

    def stage(self, item: DataItem) -> StagedItem:
        """Fetch an item, or find it in the cache, and link it into the data directory.

        Raises FetchFailed, LockLost, OSError, and ValueError for a plan that cannot be carried out.
        """
        plugin_costs = plugin_receipt.read(path_of(item.urls[0])) if item.method == "native" else None
        if item.method in ("shared", "native") and item.unpack == "no":
            path = in_place.verify(item, self.cache, self.pulse)
            self._link_item(item, self._copy_path(item, path) if item.writable else path)
            return StagedItem(item, path, None, plugin_costs)
        sources = sources_from_plan(self.plan, item)
        receipts: list[Receipt | None] = []

        def fill(place: str, pulse: Callable[[], None]) -> None:
            receipts.append(self._fetch(item, sources, identity, key, place, pulse))

        settings = settings_from_plan(self.plan)
        identity = identify(item, sources, settings, self._progress_callback(item), self.pulse)
        key = _cache_key(item, identity)
        held = self.cache.obtain(key, fill, self.pulse, lambda who: self.on_wait(item, who))
        self._held.append(held)
        self._link_item(item, self._copy_held(item, key, held) if item.writable else held.content)
        held.verify()
        return StagedItem(item, held.content, receipts[0] if receipts else None, plugin_costs)

    def refresh(self) -> None:
        """Keep all staged items marked as in use. Must be called regularly."""
        for held in self._held:
            held.marker.touch()

    def release(self) -> None:
        """Mark all staged items as no longer in use."""
        for held in self._held:
            held.release()
        self._held.clear()

    def _fetch(
        self,
        item: DataItem,
        sources: list[Source],
        identity: str,
        key: str,
        place: str,
        pulse: Callable[[], None],
    ) -> Receipt | None:
        """Fetch an item into the directory `place` of its unfinished cache entry.

        Return None if an earlier process had fetched all of it and was killed before it added the entry.
        """
        content, settings = os.path.join(place, "content"), settings_from_plan(self.plan)
        sink: Sink
        if item.unpack == "no":
            sink = PartFile(place, "content")
        else:
            limits = None if item.most is None else limits_for_stranger(item.most)
            sink = unpacking = UnpackingSink(content, item.name, item.unpack == "nested", limits, pulse)
            unpacking.recover(identity)
        if os.path.lexists(content):  # it got this name only when it was complete and verified
            sink.close()
            write_entry(place, total_size(content, pulse), sources[0].name, pulse)
            return None
        # The copy of another user saves network traffic and is verified like any other source.
        copies: list[Source] = []
        if item.is_named_by_digest:
            copies += self.cache.copies_of_other_users(key)
        evicting = EvictingSink(sink, self.cache, settings.margin, pulse)
        on_progress = self._progress_callback(item)
        try:
            receipt = fetch(item, [*copies, *sources], evicting, settings, on_progress, pulse)
        finally:
            sink.close()
        main_source = max(receipt.sources, default="", key=lambda name: receipt.sources[name].bytes)
        write_entry(place, receipt.bytes, main_source, pulse)
        return receipt

    def _copy_held(self, item: DataItem, key: str, held: HeldEntry) -> str:
        """Return the path of a private copy of a cache entry."""
        target = self._copy_target(item, key)
        with held.open() as entry:
            make_copy(entry, os.path.basename(held.content), target, self.pulse)
        return target

    def _copy_path(self, item: DataItem, path: str) -> str:
        """Return the path of a private copy of a file or folder that the node can read."""
        folder, name = os.path.split(os.path.realpath(path))
        target = self._copy_target(item, _sha256(path))
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            make_copy(parent, name, target, self.pulse)
        finally:
            os.close(parent)
        return target

    def _copy_target(self, item: DataItem, key: str) -> str:
        # One for each place: what is changed in one of them stays as it is in the others.
        return os.path.join(self.directory + _COPIES, "%s-%s" % (key, _sha256([item.to, item.name])[:16]))

    def _progress_callback(self, item: DataItem) -> Callable[[FetchProgress], None]:
        return lambda progress: self.on_progress(item, progress)

    def _link_item(self, item: DataItem, content: str) -> None:
        """Link the content into the data directory. The cache is never written to."""
        if item.unpack == "no":
            _link(content, os.path.join(self._make_directory(item.to), item.name))
            return
        parent, name = os.path.split(item.to)
        if name and not os.path.lexists(os.path.join(self._make_directory(parent), name)):
            _link(content, os.path.join(self.directory, item.to))
        else:
            _link_all(content, self._make_directory(item.to))

    def _make_directory(self, to: str) -> str:
        """Create a directory of this attempt, replacing links into the cache by directories of links."""
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


def _cache_key(item: DataItem, identity: str) -> str:
    """Return the key of an item's cache entry."""
    if item.digests:
        key = "%s-%s" % (item.strongest_algorithm, item.digests[item.strongest_algorithm].lower())
        if not item.is_named_by_digest:
            key += "-" + _sha256([sorted(item.digests.items()), item.size, *item.urls])[:16]
    else:
        key = "unpinned-%s" % _sha256(identity)
    return key if item.unpack == "no" else "%s-%s" % (key, _UNPACKED[item.unpack])


#: Added to the path of the data directory: private copies are beside it, in the attempt's scratch.
_COPIES = "-writable"
_UNPACKED = {"yes": "unpacked", "nested": "nested"}


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _link_all(content: str, directory: str) -> None:
    for name in os.listdir(content):
        _link(os.path.join(content, name), os.path.join(directory, name))


def _link(content: str, target: str) -> None:
    if os.path.islink(target) and os.readlink(target) == content:
        return  # made by an earlier leg of this attempt
    try:
        os.symlink(content, target)
    except FileExistsError:
        raise ValueError(
            "two entries of data: both provide %s; give one of them another `to:`" % os.path.basename(target)
        ) from None
