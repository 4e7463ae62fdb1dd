"""Where each item of an archive lies and what it is called, in a few flat arrays.

No Python object is kept for an item: each takes its name's bytes and 28 more, and reading one in a forked
worker writes to no page that the others share.

An item's name is a folder's and its own. Folders are few, and classes follow from them alone.
"""

from __future__ import annotations

import operator
from array import array
from typing import Sequence, Tuple

#: Of `packed`: the item is in the archive as it is.
AS_IT_IS = -1

#: What is found of an item: name, offset, size, packed.
Found = Tuple[bytes, int, int, int]


class Table:
    """Read only. Of each item: offset and size in the archive, folder, name.

    `packed` is empty unless some items are deflated: then it has their size in the archive, or AS_IT_IS.
    A folder's name ends in "/" or is empty; `roots` says how much of it leads into the innermost archive.
    """

    def __init__(
        self,
        offsets: Sequence[int],
        sizes: Sequence[int],
        packed: Sequence[int],
        name_ends: Sequence[int],
        folder_ends: Sequence[int],
        roots: Sequence[int],
        folders: Sequence[int],
        names: bytes,
        folder_names: bytes,
    ) -> None:
        self.offsets = offsets
        self.sizes = sizes
        self.packed = packed
        self.name_ends = name_ends
        self.folder_ends = folder_ends
        self.roots = roots
        self.folders = folders
        self.names = names
        self.folder_names = folder_names

    def __len__(self) -> int:
        return len(self.offsets)

    def base_name(self, row: int) -> bytes:
        return self.names[self.name_ends[row - 1] if row else 0 : self.name_ends[row]]

    def folder_name(self, folder: int) -> bytes:
        return self.folder_names[self.folder_ends[folder - 1] if folder else 0 : self.folder_ends[folder]]

    def name(self, row: int) -> bytes:
        return self.folder_name(self.folders[row]) + self.base_name(row)

    def fits(self, archive_size: int) -> bool:
        """Whether every number in it can be true of an archive of this size."""
        count = len(self.offsets)
        if not count:
            return not (self.sizes or self.packed or self.name_ends or self.folders)
        stored = self.sizes if not self.packed else list(map(_stored, self.sizes, self.packed))
        return (
            len(self.sizes) == len(self.name_ends) == len(self.folders) == count
            and len(self.packed) in (0, count)
            and len(self.roots) == len(self.folder_ends)
            and min(self.offsets) >= 0
            and min(self.sizes) >= 0
            and min(stored) >= 0
            and max(map(operator.add, self.offsets, stored)) <= archive_size
            and min(self.folders) >= 0
            and max(self.folders) < len(self.folder_ends)
            and _ascends(self.name_ends, len(self.names))
            and _ascends(self.folder_ends, len(self.folder_names))
        )


def _stored(size: int, packed: int) -> int:
    return size if packed == AS_IT_IS else packed


def _ascends(ends: Sequence[int], last: int) -> bool:
    return ends[0] >= 0 and ends[-1] == last and all(map(operator.le, ends[:-1], ends[1:]))


class TableBuilder:
    """Makes a Table, item by item."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.sizes = array("q")
        self.packed = array("q")
        self.name_ends = array("q")
        self.folder_ends = array("q")
        self.roots = array("q")
        self.folders = array("i")
        self.names = bytearray()
        self.folder_names = bytearray()

    def folder(self, root: bytes, below: bytes) -> int:
        """A new folder `below` an archive whose names begin with `root`; both end in "/", if not empty."""
        self.folder_names += root + below
        self.folder_ends.append(len(self.folder_names))
        self.roots.append(len(root))
        return len(self.roots) - 1

    def item(self, folder: int, name: bytes, offset: int, size: int, packed: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.packed.append(packed)
        self.folders.append(folder)
        self.names += name
        self.name_ends.append(len(self.names))

    def table(self) -> Table:
        if self.packed.count(AS_IT_IS) == len(self.packed):
            del self.packed[:]
        return Table(
            self.offsets,
            self.sizes,
            self.packed,
            self.name_ends,
            self.folder_ends,
            self.roots,
            self.folders,
            bytes(self.names),
            bytes(self.folder_names),
        )
