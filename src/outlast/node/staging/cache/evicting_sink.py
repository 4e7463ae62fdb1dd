"""A sink for which room is made, by removing from a store what nobody uses, before its bytes come."""

from __future__ import annotations

import contextlib
from typing import Callable

from outlast.node.archives.sink import Block, Sink
from outlast.node.staging.cache.data_cache import CacheFull, DataCache
from outlast.node.staging.fetch.disk_space import Bounded


class EvictingSink:
    def __init__(self, sink: Sink, store: DataCache, margin: int, pulse: Callable[[], None]) -> None:
        self._sink = sink
        self._store = store
        self._margin = margin
        self._pulse = pulse
        self.place = store.root

    def needs(self, size: int) -> int:
        need = self._sink.needs(size) if isinstance(self._sink, Bounded) else size
        with contextlib.suppress(
            CacheFull
        ):  # whoever asks compares with what is free, and says it with numbers
            self._store.make_room(need + self._margin, self._pulse)
        return need

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        return self._sink.resume(identity, replay)

    def write(self, block: Block) -> None:
        self._sink.write(block)

    def restart(self) -> None:
        self._sink.restart()

    def finish(self) -> None:
        self._sink.finish()

    def close(self) -> None:
        self._sink.close()
