"""Parsing of tar headers, GNU long names and pax records.

Pure functions over bytes, for readers of a stream and for readers that jump from header to header. Names are
returned as they are in the archive; `safe_names` decides whether one is safe.

A tar in which two programs would find different members is refused rather than guessed at: a size that is not
a number, a directory or link that claims to have content, an extension without a member after it.
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
#: A tape's volume label: a name without content that is not a file.
VOLUME = b"V"
#: Headers that are no members, but describe the next member or all that follow.
EXTENSIONS = frozenset((LONG_NAME, LONG_LINK, PAX_GLOBAL)) | PAX
#: In bytes; an extension is read into memory. The longest path on Linux has 4,096 bytes.
MAX_EXTENSION = 1 << 20

_LAYOUT = struct.Struct("100s8s16x12s12s8ss100s6s2x80x155s12x")
_POSIX = b"ustar\0"
_ADLER_MODULUS = 65521
#: Prefix of the pax keys of sparse files, which are refused: their content in the archive is not the file's.
_PAX_SPARSE = b"GNU.sparse."
_PAX_KEYS = (b"path", b"linkpath", b"size")


class Header(NamedTuple):
    name: bytes
    mode: int
    #: Bytes of content that follow, without the padding to whole blocks.
    size: int
    #: Seconds since the epoch.
    modified: int
    #: The type flag, one byte; see the constants above.
    kind: bytes
    link: bytes


def parse(block: bytes) -> Header:
    """Parse one header block, which must not be all zero. Raises BadArchive.

    The result does not include extensions yet: see `Extensions.apply`.
    """
    name, mode, size, modified, checksum, kind, link, magic, prefix = _LAYOUT.unpack(block)
    if not _is_checksum_valid(block, checksum):
        raise BadArchive("a tar header is missing or damaged: its checksum is wrong")
    name = name.partition(b"\0")[0]
    # Only the POSIX format has a prefix in this field; GNU tar and older formats use it otherwise.
    if magic == _POSIX and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    if kind == b"\0" and name.endswith(b"/"):
        kind = DIRECTORY  # the oldest format has no type flag
    return Header(
        name,
        _parse_cached(mode),
        _parse_number(size),
        _parse_cached(modified),
        kind,
        link.partition(b"\0")[0],
    )


def padded(size: int) -> int:
    """Return `size` rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def has_content(header: Header) -> bool:
    """Return True if `header.size` bytes of content follow. Raises BadArchive if programs disagree on it."""
    if header.kind in REGULAR or header.kind in EXTENSIONS:
        return True
    if header.kind == DIRECTORY or header.kind in LINKS or header.kind in DEVICES or header.kind == VOLUME:
        if header.size:
            raise BadArchive(
                "%s is not a file but claims %d bytes of content" % (printable(header.name), header.size)
            )
        return False
    if header.kind == SPARSE:
        raise BadArchive("%s is a sparse file; pack it without --sparse" % printable(header.name))
    raise BadArchive("%s has an unknown type (%r)" % (printable(header.name), header.kind))


def printable(name: bytes) -> str:
    """Return a name for messages: control characters escaped, at most 200 characters."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= 200 else text[:197] + "…"


class Extensions:
    """The extensions that apply to the next member: long names (GNU) and records (pax)."""

    def __init__(self) -> None:
        self._global: dict[bytes, bytes] = {}
        self._records: dict[bytes, bytes] = {}
        self._long: dict[bytes, bytes] = {}
        #: True if a member must follow.
        self.pending = False

    def add(self, kind: bytes, content: bytes) -> None:
        """Add an extension: a header's kind, which is in EXTENSIONS, and its content. Raises BadArchive."""
        if kind == PAX_GLOBAL:
            self._global.update(_select_known(parse_pax(content)))
            return
        if kind in PAX:
            self._records = _select_known(parse_pax(content))
        else:
            self._long[kind] = content.partition(b"\0")[0]
        self.pending = True

    def apply(self, header: Header) -> Header:
        """Return the header with the pending extensions applied, which are then cleared. Raises BadArchive.

        The header of an extension is returned unchanged.
        """
        if (not self.pending and not self._global) or header.kind in EXTENSIONS:
            return header
        records = {**self._global, **self._records}
        name = self._long.get(LONG_NAME, header.name)
        link = self._long.get(LONG_LINK, header.link)
        self._records, self._long, self.pending = {}, {}, False
        # An empty value cancels a record.
        name = records.get(b"path") or name
        link = records.get(b"linkpath") or link
        if b"\0" in name:
            raise BadArchive("%s: a name must not have a zero byte" % printable(name))
        if _PAX_SPARSE in records:
            raise BadArchive("%s is a sparse file; pack it without --sparse" % printable(name))
        size = records.get(b"size")
        return header._replace(name=name, link=link, size=_parse_decimal(size) if size else header.size)


def _select_known(records: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the records that are used; global ones are kept to the end and merged for each member."""
    kept = {key: records[key] for key in _PAX_KEYS if key in records}
    if any(key.startswith(_PAX_SPARSE) for key in records):
        kept[_PAX_SPARSE] = b""
    return kept


def parse_pax(content: bytes) -> dict[bytes, bytes]:
    """Parse records `LENGTH KEY=VALUE\\n`, where the length counts the whole record. Raises BadArchive."""
    records: dict[bytes, bytes] = {}
    offset = 0
    while offset < len(content) and content[offset]:
        length, record = _parse_pax_record(content, offset)
        key, separator, value = record.partition(b"=")
        if not separator:
            raise BadArchive("a pax header has a record without a value")
        records[key] = value
        offset += length
    return records


def _parse_pax_record(content: bytes, offset: int) -> tuple[int, bytes]:
    space = content.find(b" ", offset, offset + 20)
    length = _parse_decimal(content[offset:space]) if space > offset else 0
    end = offset + length
    if end <= space + 1 or end > len(content) or content[end - 1 : end] != b"\n":
        raise BadArchive("a pax header has a record whose length is wrong")
    return length, content[space + 1 : end - 1]


def _parse_decimal(digits: bytes) -> int:
    if len(digits) > 19 or not digits.isdigit():
        raise BadArchive("a pax header has %s instead of a number" % printable(digits))
    return int(digits)


@lru_cache(maxsize=1024)
def _parse_cached(field: bytes) -> int:
    """Parse a mode or a time; an archive has few different ones, so a cache saves time."""
    return _parse_number(field)


def _parse_number(field: bytes) -> int:
    """Parse octal digits, or a large number in base 256."""
    digits = field.rstrip(b"\0 ")
    if not digits.isdigit():
        if field[0] & 0x80:
            return _parse_base_256(field)
        digits = digits.lstrip(b" ")
        if not digits:
            return 0
    # int() alone would also accept signs, underscores and "0o".
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            pass  # it has an 8 or a 9
    raise BadArchive("a tar header has %s instead of an octal number" % printable(digits))


def _parse_base_256(field: bytes) -> int:
    value = int.from_bytes(field[1:], "big")
    if field[0] != 0x80 or value >= 1 << 63:
        raise BadArchive("a tar header has a number that is negative or absurdly large")
    return value


def _is_checksum_valid(block: bytes, field: bytes) -> bool:
    """Return True if `field` holds the sum of the block's bytes, where the field itself counts as spaces."""
    try:
        stated = _parse_number(field)
    except BadArchive:
        return False
    # The low half of an Adler-32 is the sum of the bytes plus one, modulo a prime, and fast.
    blanks = 8 * 0x20 + 1 - (zlib.adler32(field) & 0xFFFF)
    if (zlib.adler32(block) & 0xFFFF) == (stated - blanks + 1) % _ADLER_MODULUS:
        return True
    # Some old programs summed signed bytes.
    return stated == _signed_sum(block) - _signed_sum(field) + 8 * 0x20


def _signed_sum(content: bytes) -> int:
    return sum(byte - 256 if byte > 127 else byte for byte in content)
