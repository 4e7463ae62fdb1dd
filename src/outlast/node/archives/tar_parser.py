"""A tar, and the tars in it, taken apart while it arrives: blocks of any size go in, steps come out.

Regular files and directories only. Whatever else a tar can hold, or what two programs would read differently,
is refused with its name. A tar in a tar needs no second reader: its headers are headers like the others, and
its members go into a directory named after it.

Nothing is written here. For each block `feed` says what is to be done on disk and, apart from that, which
bytes are in no file: headers and padding. Both together are the block again, which is what makes it possible
to go on after a kill (see `skeleton`). Bytes that end in the middle of a header are held back until the rest
is there; they count as not fed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outlast.node.archives import formats, safe_names, tar_headers
from outlast.node.archives.actions import ActionKind, ArchiveAction, Current, ParserOutput
from outlast.node.archives.limits import LimitAccount
from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_headers import BLOCK, DIRECTORY, EXTENSIONS, REGULAR, Extensions, Header, shown

_ENDLESS = 1 << 62


@dataclass
class _Level:
    """One of the tars that are open, the outermost one first."""

    name: bytes
    #: Where its members go: empty, or a clean path.
    folder: bytes
    #: Where in the stream it ends.
    end: int
    extensions: Extensions = field(default_factory=Extensions)
    #: Its end mark has been read; nothing but zeros may follow.
    ended: bool = False


class _Unit(Enum):
    """What comes whole, or is held back until it is."""

    HEADER = "a header"
    EXTENSION = "what an extension says"
    SNIFF = "the first block of a file that is called like a tar"


class TarParser:
    def __init__(self, account: LimitAccount, nested: bool, depth: int = 1) -> None:
        self._account = account
        self._nested = nested
        self._depth = depth
        self._levels = [_Level(b"", b"", _ENDLESS)]
        #: Where in the stream the next byte is that has not been accounted for.
        self.position = 0
        #: The file that is under way, or that begins with the next byte.
        self.current: Current | None = None
        self._padding = 0
        self._unit = _Unit.HEADER
        self._need = BLOCK
        self._extension = b""
        self._held = bytearray()

    def feed(self, block: Block) -> ParserOutput:
        """Raises BadArchive."""
        parsed = ParserOutput()
        view = memoryview(block)
        at, end = 0, len(view)
        if self._held:
            at = min(self._need - len(self._held), end)
            self._held += view[:at]
            if len(self._held) < self._need:
                return parsed
            unit = bytes(self._held)
            self._held.clear()
            self._take(unit, parsed)
        while at < end:
            if self._padding:
                count = min(self._padding, end - at)
                self._pad(view[at : at + count], parsed)
                at += count
            elif self.current is not None and self._unit is not _Unit.SNIFF:
                count = self._small(self.current, view, at, parsed)
                if not count:
                    count = min(self.current.left, end - at)
                    self._content(self.current, view[at : at + count], parsed)
                at += count
            elif end - at < self._need:
                self._held += view[at:]
                at = end
            else:
                count = self._need
                self._take(bytes(view[at : at + count]), parsed)
                at += count
        return parsed

    def pass_over(self, count: int) -> None:
        """The next `count` bytes are content that is in the current file already."""
        assert self.current is not None and count <= self.current.left
        if self._unit is _Unit.SNIFF:
            self._expect_header()  # it is in a file, so it was found to be no tar
        self.current.done += count
        self.position += count
        if not self.current.left:
            self._after_content(self.current.size)

    def finish(self) -> None:
        """There are no more bytes. Raises BadArchive if there should be."""
        if self._held or len(self._levels) > 1 or self.current is not None or not self._levels[0].ended:
            raise BadArchive(
                "the archive is cut: it ends after %d bytes, without its end mark" % self.position
            )

    def _take(self, unit: bytes, parsed: ParserOutput) -> None:
        level = self._levels[-1]
        self._check_room(level, len(unit))
        if self._unit is _Unit.SNIFF:
            self._expect_header()
            assert self.current is not None
            if not formats.is_tar(unit):
                self._content(self.current, memoryview(unit), parsed)
                return
            level = self._descend(self.current, parsed)
        parsed.literal(unit)
        self.position += len(unit)
        if self._unit is _Unit.EXTENSION:
            self._expect_header()
            self._padding = -len(unit) % BLOCK
            level.extensions.add(self._extension, unit)
        elif unit == tar_headers.END:
            if level.extensions.pending:
                raise BadArchive("%sa name is announced, and no member follows" % self._where())
            level.ended = True
            self._padding = level.end - self.position
        else:
            self._header(level, tar_headers.parse(unit), parsed)
        self._ascend()

    def _header(self, level: _Level, header: Header, parsed: ParserOutput) -> None:
        if header.kind in EXTENSIONS:
            if header.size > tar_headers.MAX_EXTENSION:
                raise BadArchive("%san extension header claims %d bytes" % (self._where(), header.size))
            if header.size:
                self._unit, self._need, self._extension = _Unit.EXTENSION, header.size, header.kind
            else:
                level.extensions.add(header.kind, b"")
            return
        header = level.extensions.apply(header)
        path = safe_names.clean(header.name, self._account.limits)
        if level.folder:
            path = safe_names.joined(level.folder, path, self._account.limits)
        tar_headers.has_content(header)
        self._account.member(path, header.size)
        if header.kind == DIRECTORY:
            if path:
                parsed.steps.append(ArchiveAction(ActionKind.FOLDER, path))
        elif header.kind not in REGULAR:
            raise BadArchive(
                "%s is %s; only files and directories are unpacked" % (shown(path), _what(header.kind))
            )
        elif path == level.folder or header.name.endswith(b"/"):
            raise BadArchive("%sa file has the name of a directory: %s" % (self._where(), shown(header.name)))
        else:
            self._regular(path, header, parsed)

    def _regular(self, path: bytes, header: Header, parsed: ParserOutput) -> None:
        executable = bool(header.mode & 0o111)
        if not header.size:
            parsed.steps.append(ArchiveAction(ActionKind.WHOLE, path, executable))
            return
        self._check_room(self._levels[-1], tar_headers.padded(header.size))
        self.current = Current(path, executable, False, header.size)
        if self._nested and formats.claims_archive(path):
            if not formats.claims_tar(path):
                self._account.deeper(path, self._depth + len(self._levels) - 1)
                self.current.kept = True
            elif header.size >= BLOCK:
                self._unit = _Unit.SNIFF

    def _content(self, current: Current, data: memoryview, parsed: ParserOutput) -> None:
        self.position += len(data)
        begins = not current.done
        current.done += len(data)
        if begins and not current.left and not current.kept:
            parsed.content(ArchiveAction(ActionKind.WHOLE, current.path, current.executable, data))
        else:
            if begins:
                do = ActionKind.KEEP if current.kept else ActionKind.BEGIN
                parsed.steps.append(ArchiveAction(do, current.path, current.executable))
            parsed.content(ArchiveAction(ActionKind.MORE, content=data))
            if not current.left:
                parsed.steps.append(ArchiveAction(ActionKind.END))
        if not current.left:
            self._after_content(current.size)

    def _small(self, current: Current, view: memoryview, at: int, parsed: ParserOutput) -> int:
        """A file that is in the block with its padding is done at once: most are. How many bytes that was."""
        count = tar_headers.padded(current.size)
        if current.done or current.kept or count > len(view) - at:
            return 0
        stop = at + current.size
        parsed.content(ArchiveAction(ActionKind.WHOLE, current.path, current.executable, view[at:stop]))
        parsed.literal(view[stop : at + count])
        self.position += count
        self.current = None
        self._ascend()
        return count

    def _after_content(self, size: int) -> None:
        self.current = None
        self._padding = -size % BLOCK
        self._ascend()

    def _pad(self, data: memoryview, parsed: ParserOutput) -> None:
        level = self._levels[-1]
        if level.ended and data != bytes(len(data)):
            raise BadArchive(
                "%sthere is more after its end mark; archives that were joined must be unpacked one by one"
                % self._where()
            )
        parsed.literal(data)
        self._padding -= len(data)
        self.position += len(data)
        self._ascend()

    def _descend(self, current: Current, parsed: ParserOutput) -> _Level:
        """The current file is a tar: go on with its members."""
        self._account.deeper(current.path, self._depth + len(self._levels) - 1)
        folder = formats.without_suffix(current.path)
        level = _Level(current.path, folder, self.position + current.size)
        self._levels.append(level)
        self.current = None
        parsed.steps.append(ArchiveAction(ActionKind.FOLDER, folder))
        return level

    def _ascend(self) -> None:
        """Leave the tars that end here."""
        while self.position == self._levels[-1].end and self.current is None:
            level = self._levels[-1]
            if not level.ended:
                raise BadArchive("%s is cut: it has no end mark" % shown(level.name))
            self._levels.pop()
            self._padding = -self.position % BLOCK

    def _check_room(self, level: _Level, count: int) -> None:
        """What comes next must fit into the tar that it is in."""
        if self.position + count > level.end:
            raise BadArchive("%s is cut, or claims more than it has" % shown(level.name))

    def _expect_header(self) -> None:
        self._unit, self._need = _Unit.HEADER, BLOCK

    def _where(self) -> str:
        name = self._levels[-1].name
        return "%s: " % shown(name) if name else ""


def _what(kind: bytes) -> str:
    known = {
        b"1": "a hard link",
        b"2": "a symbolic link",
        b"3": "a device",
        b"4": "a device",
        b"6": "a pipe",
        b"V": "the label of a tape",
    }
    return known.get(kind, "of the kind %r" % kind)
