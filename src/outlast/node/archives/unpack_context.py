"""What all readers of one archive, and of the archives in it, share."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Callable, Iterator, NamedTuple

from outlast.node.archives.limits import LimitAccount
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown
from outlast.node.archives.workspace import Late, Workspace


class PendingZip(NamedTuple):
    """One that is all there, to be unpacked at the end: a zip has its table of contents at its end."""

    file: str
    #: Its number among the archives, and how many there are inside one another: there may be thousands, so
    #: nothing is open for any of them before its turn.
    number: int
    depth: int
    #: Its path in the archive around it; empty for the outermost one.
    path: bytes


class UnpackContext:
    """What all readers of one archive share: limits, numbers, and the list of what is left for the end."""

    def __init__(
        self, staging: Workspace, account: LimitAccount, nested: bool, pulse: Callable[[], None]
    ) -> None:
        self.staging = staging
        self.account = account
        self.nested = nested
        self.pulse = pulse
        self.lates: list[Late] = []
        self.zips: deque[PendingZip] = deque()
        self._last = 0

    def number(self) -> int:
        self._last += 1
        return self._last


@contextlib.contextmanager
def named(path: bytes) -> Iterator[None]:
    """What is wrong with an archive inside the archive is said with its name."""
    try:
        yield
    except BadArchive as error:
        raise BadArchive("%s: %s" % (shown(path), error) if path else str(error)) from error
