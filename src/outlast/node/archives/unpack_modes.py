"""A tar, and the tars in it, unpacked while it arrives; and gone on with by a later process."""

from __future__ import annotations

import os
from typing import Callable

from outlast.node.archives import resume
from outlast.node.archives.sink import Block
from outlast.node.archives.skeleton import Skeleton
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.tree import write_all
from outlast.node.archives.unpack_context import UnpackContext
from outlast.node.archives.writer import ArchiveWriter, Reader
from outlast.node.files import blocks, open_file


class StreamingUnpack:
    def __init__(self, shelf: UnpackContext) -> None:
        self._shelf = shelf
        self._skeleton = Skeleton(shelf.staging.skeleton)
        self._parser = TarParser(shelf.account, shelf.nested)
        self._placing = ArchiveWriter(shelf, 0, 1)

    def resume(self, replay: Callable[[Block], None]) -> int | None:
        """How many bytes are there; None, and nothing replayed, if what is there contradicts itself."""
        records = self._skeleton.records()
        reached = resume.survey(self._skeleton, records, self._shelf, self._placing.tree)
        if reached is None:
            return None
        resume.replay(self._skeleton, records, reached, self._parser, self._placing, replay)
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


# An archive whose bytes cannot be had again from its members: kept as it came, and read on the way.
class StoredUnpack:
    def __init__(self, shelf: UnpackContext, single: bytes) -> None:
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
