"""Finds the items of an archive without reading them, also in the archives inside it.

What cannot be served as an item is refused, as the unpacker refuses it: links, devices, sparse files, names
that lead out of the archive or come twice, archives that were cut or joined. Each byte of a tar is looked at
once at most, so a hostile one costs no more than an honest one of its size.
"""

from __future__ import annotations

import mmap
from typing import BinaryIO, Iterator

from outlast.data import tar_members, zip_members
from outlast.data.item_table import AS_IT_IS, Found, Table, TableBuilder
from outlast.node.archives import formats, safe_names
from outlast.node.archives.formats import ArchiveFormat
from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown

#: Archives in archives in archives. Nothing is written, so this may be more than the unpacker's.
MAX_DEPTH = 32

_LIMITS = ArchiveLimits()
#: What macOS leaves in archives is left out.
_RUBBISH_FOLDER = b"__MACOSX/"
_RUBBISH_FILE = b".DS_Store"
_RUBBISH_PREFIX = b"._"


def scan(content: mmap.mmap, file: BinaryIO, nested: bool) -> Table:
    """All items of `content`, which is `file` mapped. Raises BadArchive.

    Tars inside are items like any other unless `nested`.
    """
    kind = formats.of(content[: formats.ENOUGH])
    if kind is ArchiveFormat.ZIP:
        found = zip_members.walk(content, file)
    elif kind in (ArchiveFormat.TAR, ArchiveFormat.OTHER):
        # What is wrong with something else is said by the walk.
        found = tar_members.walk(content, 0, len(content))
    else:
        raise BadArchive(
            "it is compressed with %s, so that no item can be read without all that comes before it. "
            "Unpack it (`unpack: yes` in params.yaml), or decompress it once" % kind.value
        )
    scanner = _Scanner(content, nested)
    scanner.take(found, b"", 0)
    return scanner.builder.table()


class _Scanner:
    def __init__(self, content: mmap.mmap, nested: bool) -> None:
        self._content = content
        self._nested = nested
        self.builder = TableBuilder()

    def take(self, found: Iterator[Found], root: bytes, depth: int) -> None:
        """Everything in one archive. The names of its items begin with `root`."""
        add = self.builder.item
        folders: dict[bytes, int] = {}
        seen: set[bytes] = set()
        for given, offset, size, packed in found:
            name = safe_names.clean(given, _LIMITS)
            if name in seen or not name:
                raise BadArchive(
                    "%s is %s" % (shown(root + name), "there twice" if name else "no name of a file")
                )
            seen.add(name)
            cut = name.rfind(b"/") + 1
            folder, last = name[:cut], name[cut:]
            if last.startswith(b".") and (last.startswith(_RUBBISH_PREFIX) or last == _RUBBISH_FILE):
                continue
            if last.endswith((b"r", b"R")) and self._is_archive(last, offset, size, packed):
                self._inner(safe_names.joined(root[:-1], name, _LIMITS), offset, size, depth + 1)
                continue
            number = folders.get(folder, -1)
            if number < 0:
                if _RUBBISH_FOLDER in folder and b"/" + _RUBBISH_FOLDER in b"/" + folder:
                    continue
                number = folders[folder] = self.builder.folder(root, folder)
            add(number, last, offset, size, packed)

    def _is_archive(self, name: bytes, offset: int, size: int, packed: int) -> bool:
        # A deflated tar has no place where its items could be read.
        if not self._nested or packed != AS_IT_IS or not formats.claims_tar(name):
            return False
        return formats.is_tar(self._content[offset : offset + min(size, formats.ENOUGH)])

    def _inner(self, path: bytes, offset: int, size: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadArchive("%s: archives lie in archives more than %d deep" % (shown(path), MAX_DEPTH))
        try:
            self.take(tar_members.walk(self._content, offset, offset + size), path + b"/", depth)
        except _Inside:
            raise
        except BadArchive as error:
            raise _Inside(
                "in %s: %s. With Archive(…, nested=False) the archives inside are items"
                % (shown(path), error)
            ) from None


class _Inside(BadArchive):
    """It says already in which of the archives inside it is."""
