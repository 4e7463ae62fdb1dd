"""State shared by the readers of one archive and of the archives inside it."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Callable, Iterator, NamedTuple

from outlast.node.archives.limits import ArchiveUsage
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable
from outlast.node.archives.workspace import PendingMove, Workspace


class PendingZip(NamedTuple):
    """A complete zip that waits to be unpacked.

    There may be thousands, so nothing is held open for any of them.
    """

    file: str
    #: Its number among the archives, and its nesting level.
    number: int
    depth: int
    #: Its path in the archive around it; empty for the outermost one.
    path: bytes


class UnpackContext:
    """Limits, archive numbers, and the work that is left for the end."""

    def __init__(
        self, workspace: Workspace, usage: ArchiveUsage, nested: bool, pulse: Callable[[], None]
    ) -> None:
        self.workspace = workspace
        self.usage = usage
        self.nested = nested
        self.pulse = pulse
        self.pending_moves: list[PendingMove] = []
        self.pending_zips: deque[PendingZip] = deque()
        self._last_number = 0

    def next_number(self) -> int:
        """Return a new number for a nested archive, counting from 1; the outermost archive is 0."""
        self._last_number += 1
        return self._last_number


@contextlib.contextmanager
def prefix_errors(path: bytes) -> Iterator[None]:
    """Prefix the message of a BadArchive with the nested archive's `path`, if that is not empty."""
    try:
        yield
    except BadArchive as error:
        raise BadArchive("%s: %s" % (printable(path), error) if path else str(error)) from error
