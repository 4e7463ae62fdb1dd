"""The files in a tar, found by jumping from header to header."""

from __future__ import annotations

import mmap
from typing import Iterator

from outlast.data.item_table import AS_IT_IS, Found
from outlast.node.archives import tar_headers
from outlast.node.archives.sink import BadArchive

#: Zeros are looked through in pieces: there may be more of them than memory.
_CHUNK = 1 << 20


def walk(content: mmap.mmap, place: int, end: int) -> Iterator[Found]:
    """The regular files between two places; no other content is read. Raises BadArchive."""
    extensions = tar_headers.Extensions()
    while True:
        if place + tar_headers.BLOCK > end:
            raise BadArchive("it ends without the mark of a tar's end: it was cut")
        block = content[place : place + tar_headers.BLOCK]
        if block == tar_headers.END:
            break
        try:
            header = extensions.apply(tar_headers.parse(block))
            size = header.size if tar_headers.has_content(header) else 0
        except BadArchive as error:
            raise BadArchive("at byte %d: %s" % (place, error)) from None
        place += tar_headers.BLOCK
        if place + size > end:
            raise BadArchive(
                "%s ends %d bytes beyond the archive: it was cut"
                % (tar_headers.shown(header.name), place + size - end)
            )
        if header.kind in tar_headers.REGULAR:
            yield header.name, place, size, AS_IT_IS
        elif header.kind in tar_headers.EXTENSIONS:
            if size > tar_headers.MAX_EXTENSION:
                raise BadArchive("at byte %d: a name of %d bytes" % (place, size))
            extensions.add(header.kind, content[place : place + size])
        elif header.kind in tar_headers.LINKS:
            raise BadArchive(
                "%s is a link to %s; only files can be read"
                % (tar_headers.shown(header.name), tar_headers.shown(header.link))
            )
        elif header.kind in tar_headers.DEVICES:
            raise BadArchive("%s is a device; only files can be read" % tar_headers.shown(header.name))
        place += tar_headers.padded(size)
    if extensions.pending:
        raise BadArchive("it ends with a long name that belongs to no member")
    for start in range(place, end, _CHUNK):
        if content[start : min(start + _CHUNK, end)].strip(b"\0"):
            raise BadArchive(
                "there is more after its end mark: archives that were joined are not one archive"
            )
