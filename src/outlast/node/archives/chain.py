"""A tar, and the tars in it, unpacked while it arrives; and gone on with by a later process."""

from __future__ import annotations

from typing import Callable

from outlast.node.archives import rebuild
from outlast.node.archives.placing import Placing
from outlast.node.archives.shelf import Shelf
from outlast.node.archives.sink import Block
from outlast.node.archives.skeleton import Skeleton
from outlast.node.archives.tar import TarParser


class Chain:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._skeleton = Skeleton(shelf.staging.skeleton)
        self._parser = TarParser(shelf.account, shelf.nested)
        self._placing = Placing(shelf, 0, 1)

    def resume(self, replay: Callable[[Block], None]) -> int | None:
        """How many bytes are there; None, and nothing replayed, if what is there contradicts itself."""
        records = self._skeleton.records()
        reached = rebuild.survey(self._skeleton, records, self._shelf, self._placing.tree)
        if reached is None:
            return None
        rebuild.replay(self._skeleton, records, reached, self._parser, self._placing, replay)
        current = self._parser.current
        if current is not None and current.done and not current.kept:
            self._placing.tree.go_on(current.path)
        return reached

    def write(self, block: Block) -> None:
        start = self._parser.position
        parsed = self._parser.feed(block)
        # First, so that no file is ever ahead of it.
        self._skeleton.append(start, parsed)
        self._placing.run(parsed.steps)

    def finish(self) -> None:
        """Raises BadArchive if something is missing."""
        self._parser.finish()

    def close(self) -> None:
        self._placing.close()
        self._skeleton.close()
