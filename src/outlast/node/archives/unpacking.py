"""An archive that is unpacked while it arrives, in one pass, and shown only once it is whole and was checked.

A tar is never on disk as such: its files are, and a skeleton from which its bytes can be had again. Anything
else is kept as it came until the end, and what was compressed is unpacked on the way all the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Callable

from outlast.node.archives import finalize, formats, safe_names, zip_unpacker
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.limits import ArchiveLimits, LimitAccount
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_headers import shown
from outlast.node.archives.unpack_context import UnpackContext, named
from outlast.node.archives.unpack_modes import StoredUnpack, StreamingUnpack
from outlast.node.archives.workspace import Late, Workspace
from outlast.node.archives.writeback import WriteBack
from outlast.node.archives.writer import ArchiveWriter
from outlast.node.files import blocks, open_file
from outlast.node.pulse import silent


class UnpackingSink:
    """The sink of one archive; see `outlast.node.archives.sink`.

    After a BadArchive nothing of it is of use, and `restart` removes it.
    """

    def __init__(
        self,
        target: str,
        name: str = "",
        nested: bool = False,
        limits: ArchiveLimits | None = None,
        pulse: Callable[[], None] = silent,
    ) -> None:
        """`target` becomes a directory, or gets more if it is one. `name` is what the archive is called."""
        self._staging = Workspace(target, name)
        self.place = os.path.dirname(self._staging.path)
        self._name = name
        self._nested = nested
        self._limits = limits or ArchiveLimits()
        self._pulse = pulse
        self._identity = ""
        #: The first bytes, until there are enough to tell what they are.
        self._head = b""
        self._shelf = self._new_shelf()
        self._reader: StreamingUnpack | StoredUnpack | None = None
        self._write_back: WriteBack | None = None

    def recover(self, identity: str) -> bool:
        """Whether an earlier process had all of it and was ended while showing it: that is done now."""
        state = self._open()
        moves = state.get("moving")
        if moves is None or state.get("identity") != identity:
            return False
        self._move([Late(**late) for late in moves])
        return True

    def needs(self, size: int) -> int:
        """How many more bytes of disk it takes at least; what is compressed takes more."""
        return size - self._shelf.account.taken

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        self.close()
        state = self._open()
        self._identity = identity
        if state.get("identity") != identity or "moving" in state:
            self._clear()
        else:
            reached = self._resume(replay)
            if reached is not None:
                return reached
            self._clear()
        return 0

    def write(self, block: Block) -> None:
        self._shelf.account.taken += len(block)
        if self._reader is None:
            self._head += bytes(block)
            if len(self._head) < formats.ENOUGH:
                return
            block = self._settle()
        if self._reader is not None:
            self._reader.write(block)
            self._to_disk().wrote(len(block))

    def restart(self) -> None:
        if not self._staging.is_open:
            self._staging.open()
        self._clear()
        self._staging.remove(self._pulse)

    def finish(self) -> None:
        if self._reader is None:
            head = self._settle()
            if self._reader is not None and head:
                self._reader.write(head)
        assert self._reader is not None
        self._reader.finish()
        while self._shelf.zips:
            file, number, depth, path = self._shelf.zips.popleft()
            with named(path), contextlib.closing(ArchiveWriter(self._shelf, number, depth)) as placing:
                zip_unpacker.unpack(file, placing)
        lates = self._shelf.lates
        finalize.check(self._staging, lates, self._pulse)
        self._to_disk().finish(self._pulse)
        self._staging.write_state(self._identity, lates)
        self._move(lates)

    def close(self) -> None:
        self._let_go()
        self._staging.close()

    def _open(self) -> dict[str, Any]:
        if not self._staging.is_open:
            self._staging.open()
        return self._staging.read_state()

    def _resume(self, replay: Callable[[Block], None]) -> int | None:
        self._let_go()
        # What was in kept archives is had again from those.
        if os.path.lexists(self._staging.skeleton):
            self._staging.clear(self._pulse, but=("state.json", "skeleton", "tree", "kept"))
            self._reader = StreamingUnpack(self._shelf)
        elif os.path.lexists(self._staging.whole):
            self._staging.clear(self._pulse, but=("state.json", "whole"))
            self._reader = self._new_whole()
        else:
            return None
        return self._reader.resume(replay)

    def _settle(self) -> bytes:
        """What it is, by its first bytes; they are to be written then. Raises BadArchive."""
        head, self._head = self._head, b""
        kind = formats.of(head)
        if kind is ArchiveFormat.OTHER:
            raise BadArchive(
                "%s is no archive that can be unpacked: it begins with %s. Those are tar, tar.gz, tar.bz2, "
                "tar.xz, tar.zst and zip; anything else is taken as it is with `unpack: no`"
                % (self._name or "this", shown(head[:16]) or "nothing")
            )
        self._open()
        self._staging.write_state(self._identity)
        self._reader = StreamingUnpack(self._shelf) if kind is ArchiveFormat.TAR else self._new_whole()
        return head

    def _to_disk(self) -> WriteBack:
        if self._write_back is None:
            self._write_back = WriteBack(self._staging.path)
        return self._write_back

    def _new_shelf(self) -> UnpackContext:
        return UnpackContext(self._staging, LimitAccount(self._limits), self._nested, self._pulse)

    def _new_whole(self) -> StoredUnpack:
        name = os.fsencode(self._name or "data")
        return StoredUnpack(self._shelf, safe_names.clean(formats.without_suffix(name) or name, self._limits))

    def _move(self, lates: list[Late]) -> None:
        self._let_go()
        finalize.move(self._staging, lates, self._pulse)
        self._staging.remove(self._pulse)

    def _clear(self) -> None:
        self._let_go()
        self._staging.clear(self._pulse)

    def _let_go(self) -> None:
        """Close what is open, and forget what came."""
        self._head = b""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._write_back is not None:
            self._write_back.close()
            self._write_back = None
        self._shelf = self._new_shelf()


def unpack_file(
    path: str,
    target: str,
    nested: bool = False,
    limits: ArchiveLimits | None = None,
    pulse: Callable[[], None] = silent,
) -> None:
    """An archive that is on disk; goes on with what an earlier process did. Raises BadArchive and OSError."""
    sink = UnpackingSink(target, os.path.basename(path), nested, limits, pulse)
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        identity = "%s %d %d" % (os.path.realpath(path), status.st_size, status.st_mtime_ns)
        try:
            if sink.recover(identity):
                return
            file.seek(sink.resume(identity, _ignored))
            for block in blocks(file, pulse):
                sink.write(block)
            if file.tell() != status.st_size:
                raise OSError(errno.EIO, "it changed while it was unpacked", path)
            sink.finish()
        except BadArchive:
            sink.restart()
            raise
        finally:
            sink.close()


def _ignored(block: Block) -> None:
    """Nobody asks for the digest of a file that is there."""
