"""A sink that evicts unused cache entries to make room before its bytes arrive."""

from __future__ import annotations

import contextlib
from typing import Callable

from outlast.node.archives.sink import Block, Sink
from outlast.node.staging.cache.data_cache import CacheFull, DataCache
from outlast.node.staging.fetch.disk_space import SpaceAwareSink


class EvictingSink:
    """A sink in the cache that passes everything on to `sink`. `margin` bytes stay free beside the item."""

    def __init__(self, sink: Sink, cache: DataCache, margin: int, pulse: Callable[[], None]) -> None:
        self._sink = sink
        self._cache = cache
        self._margin = margin
        self._pulse = pulse
        self.place = cache.root

    def needs(self, size: int) -> int:
        """Make room for a file of `size` bytes, and return how many more bytes of disk it takes."""
        need = self._sink.needs(size) if isinstance(self._sink, SpaceAwareSink) else size
        # The caller compares the result with the free space and reports the numbers.
        with contextlib.suppress(CacheFull):
            self._cache.make_room(need + self._margin, self._pulse)
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
