"""The sink that unpacks an archive while it arrives, and makes the tree visible once it is complete.

A tar is never on disk as such: its files are, and a skeleton from which its bytes can be rebuilt. Any other
archive is stored until the end; a compressed one is unpacked at the same time, a zip at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Callable

from outlast.node.archives import finalize, formats, safe_names, zip_unpacker
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.limits import ArchiveLimits, ArchiveUsage
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_headers import printable
from outlast.node.archives.unpack_context import UnpackContext, prefix_errors
from outlast.node.archives.unpack_modes import StoredUnpack, StreamingUnpack
from outlast.node.archives.workspace import PendingMove, Workspace
from outlast.node.archives.writeback import WriteBack
from outlast.node.archives.writer import ArchiveWriter
from outlast.node.files import read_blocks
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_file


class UnpackingSink:
    """The sink of one archive; see `outlast.node.archives.sink`.

    After a BadArchive nothing of the archive can be used; `restart` removes it.
    """

    def __init__(
        self,
        target: str,
        name: str = "",
        nested: bool = False,
        limits: ArchiveLimits | None = None,
        pulse: Callable[[], None] = no_pulse,
    ) -> None:
        """Unpack into the directory `target`, which is created or added to.

        `name` is the archive's file name. With `nested`, archives inside the archive are unpacked too.
        """
        self._workspace = Workspace(target, name)
        self.place = os.path.dirname(self._workspace.path)
        self._name = name
        self._nested = nested
        self._limits = limits or ArchiveLimits()
        self._pulse = pulse
        self._identity = ""
        #: The first bytes, until there are enough to detect the format.
        self._head = b""
        self._context = self._new_context()
        self._mode: StreamingUnpack | StoredUnpack | None = None
        self._writeback: WriteBack | None = None

    def recover(self, identity: str) -> bool:
        """Move the tree into place if an earlier process completed it but was killed before that was done.

        Return True if that is done, and False if there was nothing to recover.
        """
        state = self._open()
        moves = self._workspace.pending_moves(state)
        if moves is None or state.get("identity") != identity:
            return False
        self._move_into_place(moves)
        return True

    def needs(self, size: int) -> int:
        """Return how many more bytes of disk an archive of `size` bytes takes; more if it is compressed."""
        return size - self._context.usage.bytes_in

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
        self._context.usage.bytes_in += len(block)
        if self._mode is None:
            self._head += bytes(block)
            if len(self._head) < formats.HEAD_SIZE:
                return
            block = self._detect_format()
        if self._mode is not None:
            self._mode.write(block)
            self._open_writeback().add(len(block))

    def restart(self) -> None:
        if not self._workspace.is_open:
            self._workspace.open()
        self._clear()
        self._workspace.remove(self._pulse)

    def finish(self) -> None:
        if self._mode is None:
            head = self._detect_format()
            if self._mode is not None and head:
                self._mode.write(head)
        assert self._mode is not None
        self._mode.finish()
        while self._context.pending_zips:
            file, number, depth, path = self._context.pending_zips.popleft()
            with prefix_errors(path), contextlib.closing(
                ArchiveWriter(self._context, number, depth)
            ) as writer:
                zip_unpacker.unpack(file, writer)
        moves = self._context.pending_moves
        finalize.check_conflicts(self._workspace, moves, self._pulse)
        self._open_writeback().finish(self._pulse)
        self._workspace.write_state(self._identity, moves)
        self._move_into_place(moves)

    def close(self) -> None:
        self._reset()
        self._workspace.close()

    def _open(self) -> dict[str, Any]:
        """Open the workspace if needed, and return its state."""
        if not self._workspace.is_open:
            self._workspace.open()
        return self._workspace.read_state()

    def _resume(self, replay: Callable[[Block], None]) -> int | None:
        self._reset()
        # The members of kept archives are not listed: they are unpacked again from those.
        if os.path.lexists(self._workspace.skeleton):
            self._workspace.clear(self._pulse, keep=("state.json", "skeleton", "tree", "kept"))
            self._mode = StreamingUnpack(self._context)
        elif os.path.lexists(self._workspace.whole):
            self._workspace.clear(self._pulse, keep=("state.json", "whole"))
            self._mode = self._new_stored_unpack()
        else:
            return None
        return self._mode.resume(replay)

    def _detect_format(self) -> bytes:
        """Choose the mode by the first bytes, and return these, to be written next. Raises BadArchive."""
        head, self._head = self._head, b""
        kind = formats.detect(head)
        if kind is ArchiveFormat.OTHER:
            raise BadArchive(
                "%s is not an archive that can be unpacked: it begins with %s. tar, tar.gz, tar.bz2, tar.xz, "
                "tar.zst and zip can be; use `unpack: no` to keep anything else as it is"
                % (self._name or "this", printable(head[:16]) or "nothing")
            )
        self._open()
        self._workspace.write_state(self._identity)
        if kind is ArchiveFormat.TAR:
            self._mode = StreamingUnpack(self._context)
        else:
            self._mode = self._new_stored_unpack()
        return head

    def _open_writeback(self) -> WriteBack:
        if self._writeback is None:
            self._writeback = WriteBack(self._workspace.path)
        return self._writeback

    def _new_context(self) -> UnpackContext:
        return UnpackContext(self._workspace, ArchiveUsage(self._limits), self._nested, self._pulse)

    def _new_stored_unpack(self) -> StoredUnpack:
        name = os.fsencode(self._name or "data")
        single_name = safe_names.clean(formats.strip_suffix(name) or name, self._limits)
        return StoredUnpack(self._context, single_name)

    def _move_into_place(self, moves: list[PendingMove]) -> None:
        self._reset()
        finalize.move_into_place(self._workspace, moves, self._pulse)
        self._workspace.remove(self._pulse)

    def _clear(self) -> None:
        self._reset()
        self._workspace.clear(self._pulse)

    def _reset(self) -> None:
        """Close all files, and return to the state before the first byte."""
        self._head = b""
        if self._mode is not None:
            self._mode.close()
            self._mode = None
        if self._writeback is not None:
            self._writeback.close()
            self._writeback = None
        self._context = self._new_context()


def unpack_file(
    path: str,
    target: str,
    nested: bool = False,
    limits: ArchiveLimits | None = None,
    pulse: Callable[[], None] = no_pulse,
) -> None:
    """Unpack an archive on disk into `target`, resuming what an earlier process began.

    Raises BadArchive and OSError.
    """
    sink = UnpackingSink(target, os.path.basename(path), nested, limits, pulse)
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        identity = "%s %d %d" % (os.path.realpath(path), status.st_size, status.st_mtime_ns)
        try:
            if sink.recover(identity):
                return
            file.seek(sink.resume(identity, _ignore))
            for block in read_blocks(file, pulse):
                sink.write(block)
            if file.tell() != status.st_size:
                raise OSError(errno.EIO, "the archive changed while it was unpacked", path)
            sink.finish()
        except BadArchive:
            sink.restart()
            raise
        finally:
            sink.close()


def _ignore(block: Block) -> None:
    """Ignore replayed bytes: no digest of a local file is computed."""
