"""Search for the items of an archive, also in the tars inside it, without reading the items.

What cannot be served as an item is refused, as the unpacker refuses it: links, devices, sparse files, names
that lead out of the archive or are repeated, truncated or concatenated archives. Each byte of a tar is read
once at most, so a hostile archive costs no more than an honest one of its size.
"""

from __future__ import annotations

import mmap
from typing import BinaryIO, Iterator

from outlast.data import tar_members, zip_members
from outlast.data.item_table import NOT_COMPRESSED, FoundItem, Table, TableBuilder
from outlast.node.archives import formats, safe_names
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable

#: The deepest nesting of archives. Nothing is written, so it may be more than the unpacker's limit.
MAX_DEPTH = 32

_LIMITS = ArchiveLimits()
#: Metadata files that macOS leaves in archives; they are left out.
_MACOS_FOLDER = b"__MACOSX/"
_MACOS_FILE = b".DS_Store"
_MACOS_PREFIX = b"._"


def scan(content: mmap.mmap, file: BinaryIO, nested: bool) -> Table:
    """Return a table of all items in `content`, which is `file` mapped. Raises BadArchive.

    Tars inside the archive are items like any other unless `nested`.
    """
    kind = formats.detect(content[: formats.HEAD_SIZE])
    if kind is ArchiveFormat.ZIP:
        found = zip_members.walk(content, file)
    elif kind in (ArchiveFormat.TAR, ArchiveFormat.OTHER):
        # For any other file, walk() raises an error that describes the problem.
        found = tar_members.walk(content, 0, len(content))
    else:
        raise BadArchive(
            "it is compressed with %s, so no item can be read without everything before it. "
            "Unpack it (`unpack: yes` in params.yaml), or decompress it once" % kind.value
        )
    scanner = _Scanner(content, nested)
    scanner.add_members(found, b"", 0)
    return scanner.builder.build()


class _Scanner:
    def __init__(self, content: mmap.mmap, nested: bool) -> None:
        self._content = content
        self._nested = nested
        self.builder = TableBuilder()

    def add_members(self, found: Iterator[FoundItem], root: bytes, depth: int) -> None:
        """Add all items of one archive, with names that begin with `root`. Raises BadArchive."""
        add_item = self.builder.add_item
        folders: dict[bytes, int] = {}
        seen: set[bytes] = set()
        for raw_name, offset, size, packed in found:
            name = safe_names.clean(raw_name, _LIMITS)
            if name in seen or not name:
                raise BadArchive(
                    "%s is %s" % (printable(root + name), "there twice" if name else "not a file name")
                )
            seen.add(name)
            cut = name.rfind(b"/") + 1
            folder, last = name[:cut], name[cut:]
            if last.startswith(b".") and (last.startswith(_MACOS_PREFIX) or last == _MACOS_FILE):
                continue
            if last.endswith((b"r", b"R")) and self._is_tar(last, offset, size, packed):
                self._add_inner_tar(safe_names.join(root[:-1], name, _LIMITS), offset, size, depth + 1)
                continue
            number = folders.get(folder, -1)
            if number < 0:
                if _MACOS_FOLDER in folder and b"/" + _MACOS_FOLDER in b"/" + folder:
                    continue
                number = folders[folder] = self.builder.add_folder(root, folder)
            add_item(number, last, offset, size, packed)

    def _is_tar(self, name: bytes, offset: int, size: int, packed: int) -> bool:
        # The items of a compressed tar have no offsets at which they could be read.
        if not self._nested or packed != NOT_COMPRESSED or not formats.is_tar_name(name):
            return False
        return formats.is_tar(self._content[offset : offset + min(size, formats.HEAD_SIZE)])

    def _add_inner_tar(self, path: bytes, offset: int, size: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadArchive("%s: archives are nested more than %d deep" % (printable(path), MAX_DEPTH))
        try:
            self.add_members(tar_members.walk(self._content, offset, offset + size), path + b"/", depth)
        except _InnerTarError:
            raise
        except BadArchive as error:
            raise _InnerTarError(
                "in %s: %s. With Archive(…, nested=False) the archives inside are items"
                % (printable(path), error)
            ) from None


class _InnerTarError(BadArchive):
    """An error whose message already names the inner tar."""
