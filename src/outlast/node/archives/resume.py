"""Rebuilding of a tar's bytes from its skeleton and the unpacked files, after a kill.

A kill leaves a skeleton and files, and the files are never ahead of the skeleton. `survey` finds how far the
two agree, by the sizes of the files; if they contradict each other, as they may after a power cut, none of it
can be used. `replay` then reads all bytes up to that point.
"""

from __future__ import annotations

import errno
import os
from typing import Callable, Protocol

from outlast.node.archives.actions import ActionKind, ArchiveAction, CurrentFile
from outlast.node.archives.limits import ArchiveUsage
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.skeleton import Skeleton, SkeletonRecord
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.tree import Tree
from outlast.node.archives.unpack_context import UnpackContext
from outlast.node.archives.workspace import Workspace, count_files
from outlast.node.archives.writer import ArchiveWriter

_CHUNK = 1 << 20


def survey(
    skeleton: Skeleton, records: list[SkeletonRecord], context: UnpackContext, tree: Tree
) -> int | None:
    """Return how many bytes of the stream can be rebuilt, or None if the files are in a state no kill leaves.

    Missing directories and empty files are created, and files that were created but not written are removed.
    """
    parser = TarParser(ArchiveUsage(context.usage.limits), context.nested)
    visitor = _SurveyVisitor(tree, context.workspace)
    try:
        reached = _walk(skeleton, records, parser, visitor, context.pulse)
        visitor.check(parser.current)
    except (BadArchive, _Inconsistent):
        return None
    return reached


def replay(
    skeleton: Skeleton,
    records: list[SkeletonRecord],
    stop: int,
    parser: TarParser,
    writer: ArchiveWriter,
    on_bytes: Callable[[Block], None],
) -> None:
    """Pass every byte before `stop` to `on_bytes`, and bring `parser` and `writer` to their state there."""
    usable = [record._replace(stop=min(record.stop, stop)) for record in records if record.start < stop]
    _walk(skeleton, usable, parser, _ReplayVisitor(writer, on_bytes), writer.context.pulse)


class _Inconsistent(Exception):
    """Skeleton and files contradict each other."""


class _Visitor(Protocol):
    def visit_literal(self, data: bytes, actions: list[ArchiveAction]) -> None:
        """Handle bytes that are in no file, and the actions that the parser derived from them."""

    def visit_content(self, current: CurrentFile, count: int) -> int:
        """Return how many of the next `count` bytes are in the file."""


def _walk(
    skeleton: Skeleton,
    records: list[SkeletonRecord],
    parser: TarParser,
    visitor: _Visitor,
    pulse: Callable[[], None],
) -> int:
    """Walk along the stream as far as it is on disk; return the offset reached."""
    for record in records:
        pulse()
        for literal, count in skeleton.runs(record):
            visitor.visit_literal(literal, parser.feed(literal).actions)
            if count:
                if parser.current is None:
                    raise _Inconsistent
                available = visitor.visit_content(parser.current, count)
                if available:
                    parser.skip_content(available)
                if available < count:
                    return parser.position
    return parser.position


class _SurveyVisitor:
    """Checks which files exist and how long they are."""

    def __init__(self, tree: Tree, workspace: Workspace) -> None:
        self._tree = tree
        self._workspace = workspace
        self._files = 0
        self._archives = 0

    def visit_literal(self, data: bytes, actions: list[ArchiveAction]) -> None:
        """Create missing directories and empty files: they have no content to fetch again."""
        for action in actions:
            if action.kind is ActionKind.MAKE_DIRECTORY:
                self._tree.make_directory(action.path)
            else:
                self._files += 1
                if self._tree.size(action.path) is None:
                    self._tree.write_file(action.path, action.executable, b"")

    def visit_content(self, current: CurrentFile, count: int) -> int:
        if not current.done:
            # A file that was created and is still empty is created again.
            if not self._size(current, self._archives + 1):
                self._remove(current)
                return 0
            self._files += not current.is_kept
            self._archives += current.is_kept
        size = self._size(current, self._archives)
        if not current.done <= size <= current.size:
            raise _Inconsistent
        return min(count, size - current.done)

    def check(self, current: CurrentFile | None) -> None:
        """Raise _Inconsistent if there are files that the walk did not visit."""
        if current is not None and current.done and self._size(current, self._archives) != current.done:
            raise _Inconsistent
        kept = len(os.listdir(self._workspace.kept)) if os.path.isdir(self._workspace.kept) else 0
        if self._files != count_files(self._workspace.tree) or self._archives != kept:
            raise _Inconsistent

    def _size(self, current: CurrentFile, archive: int) -> int:
        if not current.is_kept:
            return self._tree.size(current.path) or 0
        try:
            return os.lstat(self._workspace.kept_file(archive)).st_size
        except FileNotFoundError:
            return 0

    def _remove(self, current: CurrentFile) -> None:
        if not current.is_kept:
            self._tree.remove(current.path)
        elif os.path.lexists(self._workspace.kept_file(self._archives + 1)):
            os.unlink(self._workspace.kept_file(self._archives + 1))


class _ReplayVisitor:
    """Reads the files, and feeds their bytes to the digests and to the readers of nested archives."""

    def __init__(self, writer: ArchiveWriter, on_bytes: Callable[[Block], None]) -> None:
        self._writer = writer
        self._on_bytes = on_bytes

    def visit_literal(self, data: bytes, actions: list[ArchiveAction]) -> None:
        self._writer.context.usage.bytes_in += len(data)
        self._on_bytes(data)

    def visit_content(self, current: CurrentFile, count: int) -> int:
        if current.is_kept and not current.done:
            self._writer.begin_archive(current.path, current.executable)
        kept = self._writer.kept
        descriptor = (
            os.open(kept.file, os.O_RDONLY | os.O_NOFOLLOW) if kept else self._writer.tree.open(current.path)
        )
        try:
            self._read(descriptor, current.done, count)
        finally:
            os.close(descriptor)
        if kept and current.done + count == current.size:
            self._writer.end_file()
        return count

    def _read(self, descriptor: int, offset: int, count: int) -> None:
        end = offset + count
        while offset < end:
            self._writer.context.pulse()
            chunk = os.pread(descriptor, min(_CHUNK, end - offset), offset)
            if not chunk:
                raise OSError(errno.EIO, "a file became shorter while it was read")
            offset += len(chunk)
            self._writer.context.usage.bytes_in += len(chunk)
            self._on_bytes(chunk)
            if self._writer.kept is not None:
                self._writer.kept.feed(chunk)
