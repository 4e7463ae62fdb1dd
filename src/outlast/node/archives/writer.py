"""What the readers find, put on disk; and the archives inside that are read on the way."""

from __future__ import annotations

import os
from typing import Iterable

from outlast.node.archives import decoders, formats
from outlast.node.archives.actions import ActionKind, ArchiveAction
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.tree import Tree, write_all
from outlast.node.archives.unpack_context import PendingZip, UnpackContext, named
from outlast.node.archives.workspace import Late


class ArchiveWriter:
    """Carries out the steps of one reader, in one tree."""

    def __init__(self, shelf: UnpackContext, number: int, depth: int) -> None:
        """`number` is that of the archive that is read, `depth` how many there are inside one another."""
        self.shelf = shelf
        self.number = number
        self.depth = depth
        folder = shelf.staging.late_folder(number)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        self.tree = Tree(folder)
        self.kept: KeptArchive | None = None
        self._archives = 0

    def run(self, steps: Iterable[ArchiveAction]) -> None:
        """Raises BadArchive and OSError."""
        tree = self.tree
        for do, path, executable, content in steps:
            if do is ActionKind.WHOLE:
                tree.whole(path, executable, content)
            elif do is ActionKind.MORE:
                if self.kept is None:
                    tree.more(content)
                else:
                    self.kept.write(content)
            elif do is ActionKind.FOLDER:
                tree.folder(path)
            elif do is ActionKind.BEGIN:
                tree.begin(path, executable)
            elif do is ActionKind.KEEP:
                self.keep(path, executable)
            else:
                self.end()

    def keep(self, path: bytes, executable: bool) -> None:
        """An archive inside this one begins, or is read again from its first byte."""
        staging, number = self.shelf.staging, self.shelf.number()
        self._archives += 1
        if self.number:
            # It can be had again from the one around it, which is kept.
            file = os.path.join(staging.late, "%d.kept" % number)
        else:
            file = staging.kept_file(self._archives)
            os.makedirs(staging.kept, mode=0o700, exist_ok=True)
        self.kept = KeptArchive(self, number, path, file, executable)

    def end(self) -> None:
        if self.kept is None:
            self.tree.end()
        else:
            kept, self.kept = self.kept, None
            kept.end()

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()
        self.tree.close()


class KeptArchive:
    """An archive inside an archive: kept as it came, and read on the way."""

    def __init__(self, outer: ArchiveWriter, number: int, path: bytes, file: str, executable: bool) -> None:
        self._outer = outer
        self._number = number
        self._path = path
        self.file = file
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(file, how, 0o755 if executable else 0o644)
        self._reader = Reader(outer.shelf, number, outer.depth + 1, file, path=path)

    def write(self, content: Block) -> None:
        write_all(self._descriptor, content)
        self.read(content)

    def read(self, content: Block) -> None:
        """What is in the file already."""
        with named(self._path):
            self._reader.feed(content)

    def end(self) -> None:
        with named(self._path):
            kind = self._reader.finish()
        self.close()
        path = os.fsdecode(self._path)
        if kind is ArchiveFormat.OTHER:
            late = Late(self._number, self._outer.number, path, kept=self.file)
        else:
            stem = os.fsdecode(formats.without_suffix(self._path))
            late = Late(self._number, self._outer.number, stem)
        self._outer.shelf.lates.append(late)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._reader.close()


class Reader:
    """An archive of any kind, from its first byte on."""

    def __init__(
        self, shelf: UnpackContext, number: int, depth: int, file: str, single: bytes = b"", path: bytes = b""
    ) -> None:
        """`file` is where it is kept; `single` what one compressed file that is no tar is to be called."""
        self._shelf = shelf
        self._number = number
        self._depth = depth
        self._file = file
        self._single = single
        self._path = path
        self._kind: ArchiveFormat | None = None
        self._decoder: decoders.Decoder | None = None
        self._parser: TarParser | None = None
        self._placing: ArchiveWriter | None = None
        #: The first bytes, compressed and then not, until there are enough to tell what they are.
        self._head = b""
        self._content_head: bytes | None = b""

    def feed(self, data: Block) -> None:
        if self._kind is None:
            self._head += bytes(data)
            if len(self._head) < formats.ENOUGH:
                return
            data = self._settle()
        if self._decoder is not None:
            for piece in self._decoder.feed(bytes(data)):
                self._decompressed(piece)
        elif self._parser is not None:
            self._parse(data)

    def finish(self) -> ArchiveFormat:
        """All of it has come. What it is; zips are only put on the shelf. Raises BadArchive."""
        if self._kind is None:
            self.feed(self._settle())
        assert self._kind is not None
        if self._decoder is not None:
            for piece in self._decoder.finish():
                self._decompressed(piece)
            if self._content_head is not None:
                self._settle_content(self._content_head)
        if self._parser is not None:
            self._parser.finish()
        if self._placing is not None:
            self._placing.end()
        self.close()
        return self._kind

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        if self._placing is not None:
            self._placing.close()

    def _settle(self) -> bytes:
        head, self._head = self._head, b""
        self._kind = formats.of(head)
        if self._kind is ArchiveFormat.OTHER:
            return head
        if self._kind is ArchiveFormat.ZIP:
            self._shelf.zips.append(PendingZip(self._file, self._number, self._depth, self._path))
            return head
        self._placing = ArchiveWriter(self._shelf, self._number, self._depth)
        if self._kind is ArchiveFormat.TAR:
            self._parser = TarParser(self._shelf.account, self._shelf.nested, self._depth)
        else:
            self._decoder = decoders.decoder(self._kind)
        return head

    def _decompressed(self, piece: bytes) -> None:
        self._shelf.account.decompressed(len(piece))
        self._shelf.pulse()
        if self._content_head is not None:
            self._content_head += piece
            if len(self._content_head) < formats.ENOUGH:
                return
            self._settle_content(self._content_head)
        else:
            self._parse(piece)

    def _settle_content(self, head: bytes) -> None:
        """What the compression was around: a tar, or one file."""
        assert self._placing is not None
        self._content_head = None
        if formats.is_tar(head):
            self._parser = TarParser(self._shelf.account, self._shelf.nested, self._depth)
        elif self._single:
            self._shelf.account.member(self._single, 0)
            self._placing.run([ArchiveAction(ActionKind.BEGIN, self._single)])
        else:
            raise BadArchive("it is compressed, and there is no tar in it")
        self._parse(head)

    def _parse(self, data: Block) -> None:
        assert self._placing is not None
        if self._parser is None:
            self._shelf.account.member(self._single, len(data))
            self._placing.run([ArchiveAction(ActionKind.MORE, content=memoryview(data))])
        else:
            self._placing.run(self._parser.feed(data).steps)
