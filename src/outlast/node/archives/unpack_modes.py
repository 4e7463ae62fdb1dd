"""The two ways of unpacking an archive while it arrives: parsed only, or stored as well.

The bytes of a tar can be rebuilt from its skeleton and its files, so it is never stored as such. The bytes of
any other archive cannot be rebuilt from its members, so it is stored until the end.
"""

from __future__ import annotations

import os
from typing import Callable

from outlast.node.archives import resume
from outlast.node.archives.sink import Block
from outlast.node.archives.skeleton import Skeleton
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.tree import write_all
from outlast.node.archives.unpack_context import UnpackContext
from outlast.node.archives.writer import ArchiveReader, ArchiveWriter
from outlast.node.files import read_blocks
from outlast.untrusted_files import open_file


class StreamingUnpack:
    """Unpacks an uncompressed tar, and the tars inside it."""

    def __init__(self, context: UnpackContext) -> None:
        self._context = context
        self._skeleton = Skeleton(context.workspace.skeleton)
        self._parser = TarParser(context.usage, context.nested)
        self._writer = ArchiveWriter(context, 0, 1)

    def resume(self, replay: Callable[[Block], None]) -> int | None:
        """Return how many bytes an earlier process left, after passing them to `replay`.

        Return None, and replay nothing, if skeleton and files contradict each other.
        """
        records = self._skeleton.read_records()
        reached = resume.survey(self._skeleton, records, self._context, self._writer.tree)
        if reached is None:
            return None
        resume.replay(self._skeleton, records, reached, self._parser, self._writer, replay)
        current = self._parser.current
        if current is not None and current.done and not current.is_kept:
            self._writer.tree.reopen_file(current.path)
        return reached

    def write(self, block: Block) -> None:
        start = self._parser.position
        parsed = self._parser.feed(block)
        # The skeleton comes first, so that no file is ever ahead of it.
        self._skeleton.append(start, parsed)
        self._writer.apply(parsed.actions)

    def finish(self) -> None:
        """Raise BadArchive if the archive is not complete."""
        self._parser.finish()

    def close(self) -> None:
        self._writer.close()
        self._skeleton.close()


class StoredUnpack:
    """Stores an archive as it came and, except for a zip, unpacks it at the same time."""

    def __init__(self, context: UnpackContext, single_name: bytes) -> None:
        """`single_name` is the name of the content if it is one compressed file."""
        self._context = context
        self._path = context.workspace.whole
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self._reader = ArchiveReader(context, 0, 1, self._path, single_name)

    def resume(self, replay: Callable[[Block], None]) -> int | None:
        """Return how many bytes are stored, after passing them to `replay`.

        The members are unpacked again: that is cheaper than to find out which of them are complete.
        """
        reached = 0
        with open_file(self._path) as file:
            for block in read_blocks(file, self._context.pulse):
                self._context.usage.bytes_in += len(block)
                replay(block)
                self._reader.feed(block)
                reached += len(block)
        return reached

    def write(self, block: Block) -> None:
        write_all(self._file, block)
        self._reader.feed(block)

    def finish(self) -> None:
        """Raise BadArchive if the archive is not complete."""
        self._reader.finish()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._reader.close()
