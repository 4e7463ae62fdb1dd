"""An archive whose bytes cannot be had again from its members: kept as it came, and read on the way."""

from __future__ import annotations

import os
from typing import Callable

from outlast.node.archives.placing import Reader
from outlast.node.archives.shelf import Shelf
from outlast.node.archives.sink import Block
from outlast.node.archives.tree import write_all
from outlast.node.files import blocks, open_file


class Whole:
    def __init__(self, shelf: Shelf, single: bytes) -> None:
        """`single` is the name of its content if that is one file that was compressed."""
        self._shelf = shelf
        self._path = shelf.staging.whole
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, how, 0o600)
        self._reader = Reader(shelf, 0, 1, self._path, single)

    def resume(self, replay: Callable[[Block], None]) -> int | None:
        """Its members are unpacked once more: that costs less than to find out which ones are whole."""
        reached = 0
        with open_file(self._path) as file:
            for block in blocks(file, self._shelf.pulse):
                self._shelf.account.taken += len(block)
                replay(block)
                self._reader.feed(block)
                reached += len(block)
        return reached

    def write(self, block: Block) -> None:
        write_all(self._file, block)
        self._reader.feed(block)

    def finish(self) -> None:
        self._reader.finish()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._reader.close()
