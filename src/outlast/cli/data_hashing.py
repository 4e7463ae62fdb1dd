"""A sink that keeps nothing but digests: what a file is, without room for it on any disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outlast.node.archives.sink import Block
from outlast.node.staging.fetch.digests import Digests


class Hashing:
    """See `outlast.node.archives.sink.Sink`. It begins at the first byte each time."""

    def __init__(self, algorithms: tuple[str, ...] = ()) -> None:
        self._algorithms = algorithms
        self._digests = Digests(algorithms)

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        self.restart()
        return 0

    def write(self, block: Block) -> None:
        self._digests.replay(block)

    def restart(self) -> None:
        self._digests = Digests(self._algorithms)

    def finish(self) -> None:
        """There is nothing to show."""

    def close(self) -> None:
        """There is nothing open."""

    def results(self) -> Mapping[str, str]:
        return self._digests.results()
