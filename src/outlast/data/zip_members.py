"""The files in a zip: listed by the standard library, their places checked against their headers."""

from __future__ import annotations

import mmap
import stat
import struct
import zipfile
import zlib
from typing import BinaryIO, Iterator

from outlast.data.item_table import AS_IT_IS, Found
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown

_MAGIC = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s22xHH")
_ENCRYPTED = 1


def walk(content: mmap.mmap, file: BinaryIO) -> Iterator[Found]:
    """Raises BadArchive. `file` is what `content` maps."""
    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise BadArchive("it begins like a zip and cannot be read as one: %s" % error) from None
    for info in listed:
        if not info.is_dir():
            name = info.filename.encode("utf-8", "surrogateescape")
            yield (name, *_place(content, info, name))


def _place(content: mmap.mmap, info: zipfile.ZipInfo, name: bytes) -> tuple[int, int, int]:
    """Where its bytes begin, how many it has, how many they are in the archive."""
    if stat.S_ISLNK(info.external_attr >> 16):
        raise BadArchive("%s is a link; only files can be read" % shown(name))
    if info.flag_bits & _ENCRYPTED:
        raise BadArchive("%s is encrypted" % shown(name))
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadArchive("%s is compressed in a way other than deflate; unpack the archive" % shown(name))
    head = content[info.header_offset : info.header_offset + _LOCAL.size]
    if info.header_offset < 0 or len(head) < _LOCAL.size or not head.startswith(_MAGIC):
        raise BadArchive("%s is not where the zip's directory says" % shown(name))
    _, name_length, extra_length = _LOCAL.unpack(head)
    start = info.header_offset + _LOCAL.size + name_length + extra_length
    if start + info.compress_size > len(content):
        raise BadArchive("%s ends beyond the archive: it was cut" % shown(name))
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return start, info.file_size, info.compress_size
    if info.file_size != info.compress_size:
        raise BadArchive("%s has two sizes" % shown(name))
    return start, info.file_size, AS_IT_IS


def inflate(packed: bytes, size: int) -> bytes:
    """`size` bytes, no more and no fewer. Raises BadArchive."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One more than there may be, so that too many are noticed and never made.
        content = inflater.decompress(packed, size + 1)
    except zlib.error as error:
        raise BadArchive("its compressed content is damaged: %s" % error) from None
    if len(content) != size or not inflater.eof:
        raise BadArchive("its compressed content is not the %d bytes that the zip's directory says" % size)
    return content
