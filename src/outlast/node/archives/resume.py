"""The bytes of a tar, from its skeleton and the files that were unpacked.

What a kill leaves is a skeleton and files, and the files are never ahead of the skeleton. `survey` looks how
far the two agree, by the files' sizes; if they contradict each other, as they may after a power cut, nothing
of it can be used. `replay` then reads everything up to there.
"""

from __future__ import annotations

import errno
import os
from typing import Callable, Protocol

from outlast.node.archives.actions import ActionKind, ArchiveAction, Current
from outlast.node.archives.limits import LimitAccount
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.skeleton import Skeleton, SkeletonRecord
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.tree import Tree
from outlast.node.archives.unpack_context import UnpackContext
from outlast.node.archives.workspace import Workspace, count_files
from outlast.node.archives.writer import ArchiveWriter

_PIECE = 1 << 20


def survey(skeleton: Skeleton, records: list[SkeletonRecord], shelf: UnpackContext, tree: Tree) -> int | None:
    """How many bytes of the stream can be rebuilt; None if something is there that no kill explains."""
    parser = TarParser(LimitAccount(shelf.account.limits), shelf.nested)
    surveyor = _Survey(tree, shelf.staging)
    try:
        reached = _walk(skeleton, records, parser, surveyor, shelf.pulse)
        surveyor.check(parser.current)
    except (BadArchive, _Odd):
        return None
    return reached


def replay(
    skeleton: Skeleton,
    records: list[SkeletonRecord],
    stop: int,
    parser: TarParser,
    placing: ArchiveWriter,
    tell: Callable[[Block], None],
) -> None:
    """Every byte before `stop` goes to `tell`; parser and placing are afterwards as they were there."""
    counted = [record._replace(stop=min(record.stop, stop)) for record in records if record.start < stop]
    _walk(skeleton, counted, parser, _Replay(placing, tell), placing.shelf.pulse)


class _Odd(Exception):
    """Skeleton and files contradict each other."""


class _Visitor(Protocol):
    def literal(self, data: bytes, steps: list[ArchiveAction]) -> None: ...

    def content(self, current: Current, count: int) -> int:
        """How many of the next `count` bytes are in the file."""


def _walk(
    skeleton: Skeleton,
    records: list[SkeletonRecord],
    parser: TarParser,
    visitor: _Visitor,
    pulse: Callable[[], None],
) -> int:
    """Along the stream, as far as it is there; where that is."""
    for record in records:
        pulse()
        for literal, count in skeleton.runs(record):
            visitor.literal(literal, parser.feed(literal).steps)
            if count:
                if parser.current is None:
                    raise _Odd
                there = visitor.content(parser.current, count)
                if there:
                    parser.pass_over(there)
                if there < count:
                    return parser.position
    return parser.position


class _Survey:
    """Looks which files are there, and how long they are."""

    def __init__(self, tree: Tree, staging: Workspace) -> None:
        self._tree = tree
        self._staging = staging
        self._files = 0
        self._archives = 0

    def literal(self, data: bytes, steps: list[ArchiveAction]) -> None:
        """Directories and empty files leave no other trace than their names: what is missing is made."""
        for step in steps:
            if step.do is ActionKind.FOLDER:
                self._tree.folder(step.path)
            else:
                self._files += 1
                if self._tree.size(step.path) is None:
                    self._tree.whole(step.path, step.executable, b"")

    def content(self, current: Current, count: int) -> int:
        if not current.done:
            # One that was made and has nothing in it yet begins once more.
            if not self._size(current, self._archives + 1):
                self._remove(current)
                return 0
            self._files += not current.kept
            self._archives += current.kept
        size = self._size(current, self._archives)
        if not current.done <= size <= current.size:
            raise _Odd
        return min(count, size - current.done)

    def check(self, current: Current | None) -> None:
        """Raises _Odd if there is anything that was not met."""
        if current is not None and current.done and self._size(current, self._archives) != current.done:
            raise _Odd
        kept = len(os.listdir(self._staging.kept)) if os.path.isdir(self._staging.kept) else 0
        if self._files != count_files(self._staging.tree) or self._archives != kept:
            raise _Odd

    def _size(self, current: Current, archive: int) -> int:
        if not current.kept:
            return self._tree.size(current.path) or 0
        try:
            return os.lstat(self._staging.kept_file(archive)).st_size
        except FileNotFoundError:
            return 0

    def _remove(self, current: Current) -> None:
        if not current.kept:
            self._tree.remove(current.path)
        elif os.path.lexists(self._staging.kept_file(self._archives + 1)):
            os.unlink(self._staging.kept_file(self._archives + 1))


class _Replay:
    """Reads the files, and tells the digests and the readers of the archives inside."""

    def __init__(self, placing: ArchiveWriter, tell: Callable[[Block], None]) -> None:
        self._placing = placing
        self._tell = tell

    def literal(self, data: bytes, steps: list[ArchiveAction]) -> None:
        self._placing.shelf.account.taken += len(data)
        self._tell(data)

    def content(self, current: Current, count: int) -> int:
        if current.kept and not current.done:
            self._placing.keep(current.path, current.executable)
        kept = self._placing.kept
        descriptor = os.open(kept.file, os.O_RDONLY) if kept else self._placing.tree.open(current.path)
        try:
            self._read(descriptor, current.done, count)
        finally:
            os.close(descriptor)
        if kept and current.done + count == current.size:
            self._placing.end()
        return count

    def _read(self, descriptor: int, at: int, count: int) -> None:
        end = at + count
        while at < end:
            self._placing.shelf.pulse()
            piece = os.pread(descriptor, min(_PIECE, end - at), at)
            if not piece:
                raise OSError(errno.EIO, "a file became shorter while it was read")
            at += len(piece)
            self._placing.shelf.account.taken += len(piece)
            self._tell(piece)
            if self._placing.kept is not None:
                self._placing.kept.read(piece)
