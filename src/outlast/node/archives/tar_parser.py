"""A push parser for a tar and the tars inside it: blocks of any size go in, actions for the writer come out.

Only regular files and directories are accepted. Anything else that a tar can hold, and anything that two
programs would read differently, is refused with its name. A tar in a tar needs no second reader: its headers
are parsed like all others, and its members go into a directory named after it.

Nothing is written here. For each block `feed` returns the actions to carry out on disk, and the bytes that
are in no file: headers and padding. Both together are the block again, which makes it possible to resume
after a kill (see `skeleton`). Bytes that end in the middle of a header are held back until the rest arrives;
they count as not fed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outlast.node.archives import formats, safe_names, tar_headers
from outlast.node.archives.actions import ActionKind, ArchiveAction, CurrentFile, ParserOutput
from outlast.node.archives.limits import ArchiveUsage
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_headers import (
    BLOCK,
    DIRECTORY,
    EXTENSIONS,
    REGULAR,
    Extensions,
    Header,
    printable,
)

_UNBOUNDED = 1 << 62


@dataclass
class _OpenTar:
    """A tar whose members are being parsed."""

    name: bytes
    #: The directory for its members: empty, or a clean path.
    folder: bytes
    #: The offset in the stream at which it ends.
    end: int
    extensions: Extensions = field(default_factory=Extensions)
    #: True once its end mark has been read; only zeros may follow.
    has_ended: bool = False


class _Unit(Enum):
    """Input that is processed as a whole, and held back until it is complete."""

    HEADER = "a header"
    EXTENSION = "the content of an extension"
    FIRST_BLOCK = "the first block of a file whose name ends like a tar's"


class TarParser:
    def __init__(self, usage: ArchiveUsage, nested: bool, depth: int = 1) -> None:
        """Parse tars inside the tar too if `nested`; `depth` is the nesting level of the outermost one."""
        self._usage = usage
        self._nested = nested
        self._depth = depth
        #: The outermost one first.
        self._open_tars = [_OpenTar(b"", b"", _UNBOUNDED)]
        #: The offset in the stream of the next byte that is neither in an action nor in a literal.
        self.position = 0
        #: The file whose content comes next, if any.
        self.current: CurrentFile | None = None
        self._padding = 0
        self._unit = _Unit.HEADER
        self._unit_size = BLOCK
        self._extension_kind = b""
        self._held = bytearray()

    def feed(self, block: Block) -> ParserOutput:
        """Parse the next bytes. Raises BadArchive."""
        parsed = ParserOutput()
        view = memoryview(block)
        at, end = 0, len(view)
        if self._held:
            at = min(self._unit_size - len(self._held), end)
            self._held += view[:at]
            if len(self._held) < self._unit_size:
                return parsed
            unit = bytes(self._held)
            self._held.clear()
            self._parse_unit(unit, parsed)
        while at < end:
            if self._padding:
                count = min(self._padding, end - at)
                self._parse_padding(view[at : at + count], parsed)
                at += count
            elif self.current is not None and self._unit is not _Unit.FIRST_BLOCK:
                count = self._parse_whole_file(self.current, view, at, parsed)
                if not count:
                    count = min(self.current.remaining, end - at)
                    self._parse_content(self.current, view[at : at + count], parsed)
                at += count
            elif end - at < self._unit_size:
                self._held += view[at:]
                at = end
            else:
                count = self._unit_size
                self._parse_unit(bytes(view[at : at + count]), parsed)
                at += count
        return parsed

    def skip_content(self, count: int) -> None:
        """Advance over `count` bytes of content that are already in the current file."""
        assert self.current is not None and count <= self.current.remaining
        if self._unit is _Unit.FIRST_BLOCK:
            self._expect_header()  # the content is in a file, so it was found not to be a tar
        self.current.done += count
        self.position += count
        if not self.current.remaining:
            self._end_content(self.current.size)

    def finish(self) -> None:
        """Declare the end of the input. Raises BadArchive if the archive is not complete."""
        if (
            self._held
            or len(self._open_tars) > 1
            or self.current is not None
            or not self._open_tars[0].has_ended
        ):
            raise BadArchive(
                "the archive is truncated: it ends after %d bytes, without its end mark" % self.position
            )

    def _parse_unit(self, unit: bytes, parsed: ParserOutput) -> None:
        tar = self._open_tars[-1]
        self._check_fits(tar, len(unit))
        if self._unit is _Unit.FIRST_BLOCK:
            self._expect_header()
            assert self.current is not None
            if not formats.is_tar(unit):
                self._parse_content(self.current, memoryview(unit), parsed)
                return
            tar = self._enter_tar(self.current, parsed)
        parsed.add_literal(unit)
        self.position += len(unit)
        if self._unit is _Unit.EXTENSION:
            self._expect_header()
            self._padding = -len(unit) % BLOCK
            tar.extensions.add(self._extension_kind, unit)
        elif unit == tar_headers.END:
            if tar.extensions.pending:
                raise BadArchive("%san extension header is the last one: no member follows" % self._prefix())
            tar.has_ended = True
            self._padding = tar.end - self.position
        else:
            self._parse_header(tar, tar_headers.parse(unit), parsed)
        self._leave_complete_tars()

    def _parse_header(self, tar: _OpenTar, header: Header, parsed: ParserOutput) -> None:
        if header.kind in EXTENSIONS:
            if header.size > tar_headers.MAX_EXTENSION:
                raise BadArchive("%san extension header claims %d bytes" % (self._prefix(), header.size))
            if header.size:
                self._unit, self._unit_size = _Unit.EXTENSION, header.size
                self._extension_kind = header.kind
            else:
                tar.extensions.add(header.kind, b"")
            return
        header = tar.extensions.apply(header)
        path = safe_names.clean(header.name, self._usage.limits)
        if tar.folder:
            path = safe_names.join(tar.folder, path, self._usage.limits)
        tar_headers.has_content(header)
        self._usage.add_member(path, header.size)
        if header.kind == DIRECTORY:
            if path:
                parsed.actions.append(ArchiveAction(ActionKind.MAKE_DIRECTORY, path))
        elif header.kind not in REGULAR:
            raise BadArchive(
                "%s is %s; only files and directories are unpacked"
                % (printable(path), _describe_kind(header.kind))
            )
        elif path == tar.folder or header.name.endswith(b"/"):
            raise BadArchive(
                "%sa file has the name of a directory: %s" % (self._prefix(), printable(header.name))
            )
        else:
            self._begin_file(path, header, parsed)

    def _begin_file(self, path: bytes, header: Header, parsed: ParserOutput) -> None:
        executable = bool(header.mode & 0o111)
        if not header.size:
            parsed.actions.append(ArchiveAction(ActionKind.WRITE_FILE, path, executable))
            return
        self._check_fits(self._open_tars[-1], tar_headers.padded(header.size))
        self.current = CurrentFile(path, executable, False, header.size)
        if self._nested and formats.is_archive_name(path):
            if not formats.is_tar_name(path):
                self._usage.check_depth(path, self._depth + len(self._open_tars) - 1)
                self.current.is_kept = True
            elif header.size >= BLOCK:
                self._unit = _Unit.FIRST_BLOCK

    def _parse_content(self, current: CurrentFile, data: memoryview, parsed: ParserOutput) -> None:
        self.position += len(data)
        begins = not current.done
        current.done += len(data)
        if begins and not current.remaining and not current.is_kept:
            parsed.add_content(ArchiveAction(ActionKind.WRITE_FILE, current.path, current.executable, data))
        else:
            if begins:
                kind = ActionKind.BEGIN_ARCHIVE if current.is_kept else ActionKind.BEGIN_FILE
                parsed.actions.append(ArchiveAction(kind, current.path, current.executable))
            parsed.add_content(ArchiveAction(ActionKind.APPEND, content=data))
            if not current.remaining:
                parsed.actions.append(ArchiveAction(ActionKind.END_FILE))
        if not current.remaining:
            self._end_content(current.size)

    def _parse_whole_file(self, current: CurrentFile, view: memoryview, at: int, parsed: ParserOutput) -> int:
        """Parse a file that is wholly in the block, padding included; return the bytes consumed, or 0."""
        count = tar_headers.padded(current.size)
        if current.done or current.is_kept or count > len(view) - at:
            return 0
        stop = at + current.size
        parsed.add_content(
            ArchiveAction(ActionKind.WRITE_FILE, current.path, current.executable, view[at:stop])
        )
        parsed.add_literal(view[stop : at + count])
        self.position += count
        self.current = None
        self._leave_complete_tars()
        return count

    def _end_content(self, size: int) -> None:
        self.current = None
        self._padding = -size % BLOCK
        self._leave_complete_tars()

    def _parse_padding(self, data: memoryview, parsed: ParserOutput) -> None:
        tar = self._open_tars[-1]
        if tar.has_ended and data != bytes(len(data)):
            raise BadArchive(
                "%sthere is data after its end mark; unpack concatenated archives one by one" % self._prefix()
            )
        parsed.add_literal(data)
        self._padding -= len(data)
        self.position += len(data)
        self._leave_complete_tars()

    def _enter_tar(self, current: CurrentFile, parsed: ParserOutput) -> _OpenTar:
        """Treat the current file as a tar: its members come next."""
        self._usage.check_depth(current.path, self._depth + len(self._open_tars) - 1)
        folder = formats.strip_suffix(current.path)
        tar = _OpenTar(current.path, folder, self.position + current.size)
        self._open_tars.append(tar)
        self.current = None
        parsed.actions.append(ArchiveAction(ActionKind.MAKE_DIRECTORY, folder))
        return tar

    def _leave_complete_tars(self) -> None:
        """Close the nested tars that end at this position."""
        while self.position == self._open_tars[-1].end and self.current is None:
            tar = self._open_tars[-1]
            if not tar.has_ended:
                raise BadArchive("%s is truncated: it has no end mark" % printable(tar.name))
            self._open_tars.pop()
            self._padding = -self.position % BLOCK

    def _check_fits(self, tar: _OpenTar, count: int) -> None:
        """Raise BadArchive if the next `count` bytes reach beyond the end of `tar`."""
        if self.position + count > tar.end:
            raise BadArchive("%s is truncated, or claims more than it has" % printable(tar.name))

    def _expect_header(self) -> None:
        self._unit, self._unit_size = _Unit.HEADER, BLOCK

    def _prefix(self) -> str:
        """Return the name of the nested tar for the beginning of a message; empty in the outermost one."""
        name = self._open_tars[-1].name
        return "%s: " % printable(name) if name else ""


def _describe_kind(kind: bytes) -> str:
    known = {
        b"1": "a hard link",
        b"2": "a symbolic link",
        b"3": "a device",
        b"4": "a device",
        b"6": "a pipe",
        b"V": "the label of a tape",
    }
    return known.get(kind, "of the type %r" % kind)
