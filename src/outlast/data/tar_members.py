"""The files in a tar, found by jumping from header to header."""

from __future__ import annotations

import mmap
from typing import Iterator

from outlast.data.item_table import NOT_COMPRESSED, FoundItem
from outlast.node.archives import tar_headers
from outlast.node.archives.sink import BadArchive

#: Trailing zeros are checked in chunks: there may be more of them than memory.
_CHUNK = 1 << 20


def walk(content: mmap.mmap, offset: int, end: int) -> Iterator[FoundItem]:
    """Yield the regular files of the tar between two offsets, without reading them. Raises BadArchive."""
    extensions = tar_headers.Extensions()
    while True:
        if offset + tar_headers.BLOCK > end:
            raise BadArchive("it is truncated: it has no tar end mark")
        block = content[offset : offset + tar_headers.BLOCK]
        if block == tar_headers.END:
            break
        try:
            header = extensions.apply(tar_headers.parse(block))
            size = header.size if tar_headers.has_content(header) else 0
        except BadArchive as error:
            raise BadArchive("at byte %d: %s" % (offset, error)) from None
        offset += tar_headers.BLOCK
        if offset + size > end:
            raise BadArchive(
                "it is truncated: %s ends %d bytes beyond the archive"
                % (tar_headers.printable(header.name), offset + size - end)
            )
        if header.kind in tar_headers.REGULAR:
            yield header.name, offset, size, NOT_COMPRESSED
        elif header.kind in tar_headers.EXTENSIONS:
            if size > tar_headers.MAX_EXTENSION:
                raise BadArchive("at byte %d: a name of %d bytes" % (offset, size))
            extensions.add(header.kind, content[offset : offset + size])
        elif header.kind in tar_headers.LINKS:
            raise BadArchive(
                "%s is a link to %s; only files can be read"
                % (tar_headers.printable(header.name), tar_headers.printable(header.link))
            )
        elif header.kind in tar_headers.DEVICES:
            raise BadArchive("%s is a device; only files can be read" % tar_headers.printable(header.name))
        offset += tar_headers.padded(size)
    if extensions.pending:
        raise BadArchive("it ends with a long name that belongs to no member")
    for start in range(offset, end, _CHUNK):
        if content[start : min(start + _CHUNK, end)].strip(b"\0"):
            raise BadArchive("there is data after its end mark; concatenated archives cannot be read as one")
