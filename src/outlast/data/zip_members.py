"""The files in a zip: listed by the standard library, part by part, with offsets checked against headers."""

from __future__ import annotations

import mmap
import stat
import struct
import zipfile
import zlib
from typing import BinaryIO, Iterator

from outlast.data.item_table import NOT_COMPRESSED, FoundItem
from outlast.node.archives import zip_table
from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable

_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 1


def walk(content: mmap.mmap, file: BinaryIO) -> Iterator[FoundItem]:
    """Yield the files of the zip `content`, which is `file` mapped. Raises BadArchive."""
    try:
        for archive in zip_table.parts(file, ArchiveLimits().members):
            for info in archive.infolist():
                if not info.is_dir():
                    name = info.filename.encode("utf-8", "surrogateescape")
                    yield (name, *_locate(content, info, name))
    except BadArchive:
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise BadArchive("it begins like a zip but cannot be read as one: %s" % error) from None


def _locate(content: mmap.mmap, info: zipfile.ZipInfo, name: bytes) -> tuple[int, int, int]:
    """Return offset, size, and compressed size (or NOT_COMPRESSED) of a member. Raises BadArchive."""
    if stat.S_ISLNK(info.external_attr >> 16):
        raise BadArchive("%s is a link; only files can be read" % printable(name))
    if info.flag_bits & _ENCRYPTED:
        raise BadArchive("%s is encrypted" % printable(name))
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadArchive("%s uses a compression other than deflate; unpack the archive" % printable(name))
    head = content[info.header_offset : info.header_offset + _LOCAL_HEADER.size]
    if info.header_offset < 0 or len(head) < _LOCAL_HEADER.size or not head.startswith(_MAGIC):
        raise BadArchive("%s is not at the offset in the zip's table of contents" % printable(name))
    _, name_length, extra_length = _LOCAL_HEADER.unpack(head)
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if start + info.compress_size > len(content):
        raise BadArchive("it is truncated: %s ends beyond the archive" % printable(name))
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return start, info.file_size, info.compress_size
    if info.file_size != info.compress_size:
        raise BadArchive("%s is not compressed but has two different sizes" % printable(name))
    return start, info.file_size, NOT_COMPRESSED


def inflate(packed: bytes, size: int) -> bytes:
    """Return the decompressed bytes. Raises BadArchive if they are not exactly `size`."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One byte more than allowed, so that an excess is noticed without being decompressed.
        content = inflater.decompress(packed, size + 1)
    except zlib.error as error:
        raise BadArchive("its compressed content is damaged: %s" % error) from None
    if len(content) != size or not inflater.eof:
        raise BadArchive("its compressed content is not the %d bytes in the zip's table of contents" % size)
    return content
