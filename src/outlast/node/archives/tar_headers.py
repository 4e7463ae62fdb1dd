"""What the 512 bytes before a member of a tar say, and the long names that come in members of their own.

Pure functions over bytes, for whoever reads a tar: from a stream, or by jumping from header to header. Names
are bytes as they are in the archive; nothing here says whether one is safe.

A tar in which two programs would find different members is refused rather than guessed at: a size that is no
number, a directory or link that claims to have content, an extension with no member after it.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

from outlast.node.archives.sink import BadArchive

BLOCK = 512
END = bytes(BLOCK)

REGULAR = frozenset((b"\0", b"0", b"7"))
DIRECTORY = b"5"
HARD_LINK = b"1"
LINKS = frozenset((HARD_LINK, b"2"))
DEVICES = frozenset((b"3", b"4", b"6"))
SPARSE = b"S"
LONG_NAME = b"L"
LONG_LINK = b"K"
PAX = frozenset((b"x", b"X"))
PAX_GLOBAL = b"g"
#: The label of a tape: a name without content that is no file.
VOLUME = b"V"
#: What is not a member but tells something of the next one, or of all that follow.
EXTENSIONS = frozenset((LONG_NAME, LONG_LINK, PAX_GLOBAL)) | PAX
#: An extension is read into memory. The longest path of a Linux system has 4,096 bytes.
MAX_EXTENSION = 1 << 20

_LAYOUT = struct.Struct("100s8s16x12s12s8ss100s6s2x80x155s12x")
_POSIX = b"ustar\0"
_ADLER = 65521
#: No sparse map is read: one of these, and the content in the archive is not the file's.
_PAX_SPARSE = b"GNU.sparse."
_HEEDED = (b"path", b"linkpath", b"size")


class Header(NamedTuple):
    name: bytes
    mode: int
    #: Bytes of content that follow, before the padding to whole blocks.
    size: int
    #: Seconds since the epoch.
    modified: int
    #: One byte; see the constants above.
    kind: bytes
    link: bytes


def parse(block: bytes) -> Header:
    """One header block, which is not all zero. Raises BadArchive.

    What an extension said of the member is not in it yet: see `Extensions.apply`.
    """
    name, mode, size, modified, checksum, kind, link, magic, prefix = _LAYOUT.unpack(block)
    if not _checks(block, checksum):
        raise BadArchive("there is no tar header where one must be: its checksum is wrong")
    name = name.partition(b"\0")[0]
    # Only POSIX has a prefix there; GNU tar and the oldest ones have something else, or nothing.
    if magic == _POSIX and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    if kind == b"\0" and name.endswith(b"/"):
        kind = DIRECTORY  # as tar wrote them before there was a kind
    return Header(name, _repeated(mode), _number(size), _repeated(modified), kind, link.partition(b"\0")[0])


def padded(size: int) -> int:
    """What `size` bytes of content take up in the archive."""
    return (size + BLOCK - 1) & -BLOCK


def has_content(header: Header) -> bool:
    """Whether `header.size` bytes follow. Raises BadArchive where programs do not agree on that."""
    if header.kind in REGULAR or header.kind in EXTENSIONS:
        return True
    if header.kind == DIRECTORY or header.kind in LINKS or header.kind in DEVICES or header.kind == VOLUME:
        if header.size:
            raise BadArchive(
                "%s is no file, and claims %d bytes of content" % (shown(header.name), header.size)
            )
        return False
    if header.kind == SPARSE:
        raise BadArchive("%s is a sparse file; pack it without --sparse" % shown(header.name))
    raise BadArchive("%s is of a kind (%r) that is not known" % (shown(header.name), header.kind))


def shown(name: bytes) -> str:
    """A name for people: what a terminal would take for a command is escaped, and it is not endless."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= 200 else text[:197] + "…"


class Extensions:
    """What was said ahead of the next member: long names (GNU) and records (pax)."""

    def __init__(self) -> None:
        self._global: dict[bytes, bytes] = {}
        self._records: dict[bytes, bytes] = {}
        self._long: dict[bytes, bytes] = {}
        #: Whether a member must follow.
        self.pending = False

    def add(self, kind: bytes, content: bytes) -> None:
        """The content of a member whose kind is in EXTENSIONS. Raises BadArchive."""
        if kind == PAX_GLOBAL:
            self._global.update(_heeded(pax_records(content)))
            return
        if kind in PAX:
            self._records = _heeded(pax_records(content))
        else:
            self._long[kind] = content.partition(b"\0")[0]
        self.pending = True

    def apply(self, header: Header) -> Header:
        """The header as it is meant, once what was pending is put in. Raises BadArchive.

        That of another extension comes back as it is.
        """
        if (not self.pending and not self._global) or header.kind in EXTENSIONS:
            return header
        records = {**self._global, **self._records}
        name = self._long.get(LONG_NAME, header.name)
        link = self._long.get(LONG_LINK, header.link)
        self._records, self._long, self.pending = {}, {}, False
        # An empty value takes a record back.
        name = records.get(b"path") or name
        link = records.get(b"linkpath") or link
        if b"\0" in name:
            raise BadArchive("%s: a name cannot have a zero byte" % shown(name))
        if _PAX_SPARSE in records:
            raise BadArchive("%s is a sparse file; pack it without --sparse" % shown(name))
        size = records.get(b"size")
        return header._replace(name=name, link=link, size=_decimal(size) if size else header.size)


def _heeded(records: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Only what counts: what is said for all members is kept to the end, and looked at for each of them."""
    kept = {key: records[key] for key in _HEEDED if key in records}
    if any(key.startswith(_PAX_SPARSE) for key in records):
        kept[_PAX_SPARSE] = b""
    return kept


def pax_records(content: bytes) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, again and again; the length counts the whole record. Raises BadArchive."""
    records: dict[bytes, bytes] = {}
    place = 0
    while place < len(content) and content[place]:
        length, record = _pax_record(content, place)
        key, separator, value = record.partition(b"=")
        if not separator:
            raise BadArchive("a pax header has a record without a value")
        records[key] = value
        place += length
    return records


def _pax_record(content: bytes, place: int) -> tuple[int, bytes]:
    space = content.find(b" ", place, place + 20)
    length = _decimal(content[place:space]) if space > place else 0
    end = place + length
    if end <= space + 1 or end > len(content) or content[end - 1 : end] != b"\n":
        raise BadArchive("a pax header has a record whose length is wrong")
    return length, content[space + 1 : end - 1]


def _decimal(digits: bytes) -> int:
    if len(digits) > 19 or not digits.isdigit():
        raise BadArchive("a pax header has %s where a number must be" % shown(digits))
    return int(digits)


@lru_cache(maxsize=1024)
def _repeated(field: bytes) -> int:
    """Of modes and times an archive has few, and so often that it pays to know them."""
    return _number(field)


def _number(field: bytes) -> int:
    """Octal digits, or, where those do not suffice, a number in base 256."""
    digits = field.rstrip(b"\0 ")
    if not digits.isdigit():
        if field[0] & 0x80:
            return _base_256(field)
        digits = digits.lstrip(b" ")
        if not digits:
            return 0
    # int() would also take signs, underscores and "0o".
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            pass  # an 8 or a 9: said below
    raise BadArchive("a tar header has %s where an octal number must be" % shown(digits))


def _base_256(field: bytes) -> int:
    value = int.from_bytes(field[1:], "big")
    if field[0] != 0x80 or value >= 1 << 63:
        raise BadArchive("a tar header has a number that is negative, or absurdly large")
    return value


def _checks(block: bytes, field: bytes) -> bool:
    """Whether the sum of all bytes, with spaces for the sum itself, is the one that is written there."""
    try:
        stated = _number(field)
    except BadArchive:
        return False
    # The low half of an Adler-32 is the sum of the bytes, plus one, modulo a prime, and ten times as fast.
    blanks = 8 * 0x20 + 1 - (zlib.adler32(field) & 0xFFFF)
    if (zlib.adler32(block) & 0xFFFF) == (stated - blanks + 1) % _ADLER:
        return True
    # Some old programs added up signed bytes.
    return stated == _signed_sum(block) - _signed_sum(field) + 8 * 0x20


def _signed_sum(content: bytes) -> int:
    return sum(byte - 256 if byte > 127 else byte for byte in content)
