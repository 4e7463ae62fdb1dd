"""The writer, which carries out the actions of a reader, and the reader of nested and compressed archives."""

from __future__ import annotations

import os
from typing import Iterable

from outlast.node.archives import decoders, formats
from outlast.node.archives.actions import ActionKind, ArchiveAction
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.tree import Tree, write_all
from outlast.node.archives.unpack_context import PendingZip, UnpackContext, prefix_errors
from outlast.node.archives.workspace import PendingMove


class ArchiveWriter:
    """Carries out the actions of one archive's reader, in one tree."""

    def __init__(self, context: UnpackContext, number: int, depth: int) -> None:
        """`number` and `depth` are the number and the nesting level of the archive that is read."""
        self.context = context
        self.number = number
        self.depth = depth
        folder = context.workspace.members_directory(number)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        self.tree = Tree(folder)
        #: The nested archive that is being written, if any.
        self.kept: KeptArchive | None = None
        self._archives = 0

    def apply(self, actions: Iterable[ArchiveAction]) -> None:
        """Carry out these actions in order. Raises BadArchive and OSError."""
        tree = self.tree
        for kind, path, executable, content in actions:
            if kind is ActionKind.WRITE_FILE:
                tree.write_file(path, executable, content)
            elif kind is ActionKind.APPEND:
                if self.kept is None:
                    tree.append(content)
                else:
                    self.kept.write(content)
            elif kind is ActionKind.MAKE_DIRECTORY:
                tree.make_directory(path)
            elif kind is ActionKind.BEGIN_FILE:
                tree.begin_file(path, executable)
            elif kind is ActionKind.BEGIN_ARCHIVE:
                self.begin_archive(path, executable)
            else:
                self.end_file()

    def begin_archive(self, path: bytes, executable: bool) -> None:
        """Begin a nested archive, or begin to read one again from its first byte."""
        workspace, number = self.context.workspace, self.context.next_number()
        self._archives += 1
        if self.number:
            # It can be read again from the archive around it, which is kept.
            file = os.path.join(workspace.late, "%d.kept" % number)
        else:
            file = workspace.kept_file(self._archives)
            os.makedirs(workspace.kept, mode=0o700, exist_ok=True)
        self.kept = KeptArchive(self, number, path, file, executable)

    def end_file(self) -> None:
        if self.kept is None:
            self.tree.end_file()
        else:
            kept, self.kept = self.kept, None
            kept.finish()

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()
        self.tree.close()


class KeptArchive:
    """A nested archive that is stored as it came and, except for a zip, unpacked at the same time."""

    def __init__(self, outer: ArchiveWriter, number: int, path: bytes, file: str, executable: bool) -> None:
        """`path` is its name in the archive around it, `file` where it is stored."""
        self._outer = outer
        self._number = number
        self._path = path
        self.file = file
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(file, flags, 0o755 if executable else 0o644)
        self._reader = ArchiveReader(outer.context, number, outer.depth + 1, file, path=path)

    def write(self, content: Block) -> None:
        """Store the next bytes, and unpack them."""
        write_all(self._descriptor, content)
        self.feed(content)

    def feed(self, content: Block) -> None:
        """Unpack the next bytes, which are stored already."""
        with prefix_errors(self._path):
            self._reader.feed(content)

    def finish(self) -> None:
        with prefix_errors(self._path):
            kind = self._reader.finish()
        self.close()
        path = os.fsdecode(self._path)
        if kind is ArchiveFormat.OTHER:
            move = PendingMove(self._number, self._outer.number, path, kept=self.file)
        else:
            stem = os.fsdecode(formats.strip_suffix(self._path))
            move = PendingMove(self._number, self._outer.number, stem)
        self._outer.context.pending_moves.append(move)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._reader.close()


class ArchiveReader:
    """Reads an archive of any format from its first byte on, and writes its members.

    A zip is only registered, to be unpacked at the end.
    """

    def __init__(
        self,
        context: UnpackContext,
        number: int,
        depth: int,
        file: str,
        single_name: bytes = b"",
        path: bytes = b"",
    ) -> None:
        """`file` is where the archive is stored, `path` its name in the archive around it.

        `single_name` is the name for the content if that is one compressed file; without it such a file is
        refused.
        """
        self._context = context
        self._number = number
        self._depth = depth
        self._file = file
        self._single_name = single_name
        self._path = path
        self._kind: ArchiveFormat | None = None
        self._decoder: decoders.Decoder | None = None
        self._parser: TarParser | None = None
        self._writer: ArchiveWriter | None = None
        #: The first bytes, until there are enough to detect the format.
        self._head = b""
        #: The same for the decompressed content; None once its format is known.
        self._content_head: bytes | None = b""

    def feed(self, data: Block) -> None:
        if self._kind is None:
            self._head += bytes(data)
            if len(self._head) < formats.HEAD_SIZE:
                return
            data = self._detect_format()
        if self._decoder is not None:
            for chunk in self._decoder.feed(bytes(data)):
                self._handle_decompressed(chunk)
        elif self._parser is not None:
            self._write_content(data)

    def finish(self) -> ArchiveFormat:
        """Handle the end of the archive, and return its format. Raises BadArchive."""
        if self._kind is None:
            self.feed(self._detect_format())
        assert self._kind is not None
        if self._decoder is not None:
            for chunk in self._decoder.finish():
                self._handle_decompressed(chunk)
            if self._content_head is not None:
                self._detect_content(self._content_head)
        if self._parser is not None:
            self._parser.finish()
        if self._writer is not None:
            self._writer.end_file()
        self.close()
        return self._kind

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        if self._writer is not None:
            self._writer.close()

    def _detect_format(self) -> bytes:
        """Prepare for the format that the first bytes show, and return these, to be processed next."""
        head, self._head = self._head, b""
        self._kind = formats.detect(head)
        if self._kind is ArchiveFormat.OTHER:
            return head
        if self._kind is ArchiveFormat.ZIP:
            self._context.pending_zips.append(PendingZip(self._file, self._number, self._depth, self._path))
            return head
        self._writer = ArchiveWriter(self._context, self._number, self._depth)
        if self._kind is ArchiveFormat.TAR:
            self._parser = TarParser(self._context.usage, self._context.nested, self._depth)
        else:
            self._decoder = decoders.create_decoder(self._kind)
        return head

    def _handle_decompressed(self, chunk: bytes) -> None:
        self._context.usage.add_decompressed(len(chunk))
        self._context.pulse()
        if self._content_head is not None:
            self._content_head += chunk
            if len(self._content_head) < formats.HEAD_SIZE:
                return
            self._detect_content(self._content_head)
        else:
            self._write_content(chunk)

    def _detect_content(self, head: bytes) -> None:
        """Detect whether the decompressed content is a tar or a single file, and process its first bytes."""
        assert self._writer is not None
        self._content_head = None
        if formats.is_tar(head):
            self._parser = TarParser(self._context.usage, self._context.nested, self._depth)
        elif self._single_name:
            self._context.usage.add_member(self._single_name, 0)
            self._writer.apply([ArchiveAction(ActionKind.BEGIN_FILE, self._single_name)])
        else:
            raise BadArchive("it is compressed but contains no tar")
        self._write_content(head)

    def _write_content(self, data: Block) -> None:
        assert self._writer is not None
        if self._parser is None:
            self._context.usage.add_member(self._single_name, len(data))
            self._writer.apply([ArchiveAction(ActionKind.APPEND, content=memoryview(data))])
        else:
            self._writer.apply(self._parser.feed(data).actions)
