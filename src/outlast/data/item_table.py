"""The table of an archive's items: offsets, sizes and names in a few flat arrays.

No Python object is kept for an item: each takes 28 bytes and the bytes of its name, and reading one in a
forked worker writes to no memory page that is shared with others.

An item's name consists of a folder's name and its own. Folders are few, and determine the classes.
"""

from __future__ import annotations

import operator
from array import array
from typing import Sequence, Tuple

#: In `packed`: the item is not compressed.
NOT_COMPRESSED = -1

#: Name, offset, size, and compressed size or NOT_COMPRESSED.
FoundItem = Tuple[bytes, int, int, int]


class Table:
    """Offset, size, folder and name of each item. Read-only.

    `packed` is empty unless some items are compressed: then it has each one's compressed size, or
    NOT_COMPRESSED. A folder's name ends in "/" or is empty; `roots` has the length of the part of it that
    leads into the innermost archive, or 0. Names are joined into one string; `name_ends` and `folder_ends`
    have the offset at which each ends.
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
        """Return the name of an item without its folder."""
        return self.names[self.name_ends[row - 1] if row else 0 : self.name_ends[row]]

    def folder_name(self, folder: int) -> bytes:
        return self.folder_names[self.folder_ends[folder - 1] if folder else 0 : self.folder_ends[folder]]

    def name(self, row: int) -> bytes:
        """Return the whole path of an item."""
        return self.folder_name(self.folders[row]) + self.base_name(row)

    def fits(self, archive_size: int) -> bool:
        """Return True if every number in the table is possible in an archive of this size."""
        count = len(self.offsets)
        if not count:
            return not (self.sizes or self.packed or self.name_ends or self.folders)
        stored = self.sizes if not self.packed else list(map(_stored_size, self.sizes, self.packed))
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
            and _are_valid_ends(self.name_ends, len(self.names))
            and _are_valid_ends(self.folder_ends, len(self.folder_names))
        )


def _stored_size(size: int, packed: int) -> int:
    return size if packed == NOT_COMPRESSED else packed


def _are_valid_ends(ends: Sequence[int], last: int) -> bool:
    """Return True if `ends` ascends from 0 or more, and ends with `last`."""
    return ends[0] >= 0 and ends[-1] == last and all(map(operator.le, ends[:-1], ends[1:]))


class TableBuilder:
    """Builds a Table, item by item."""

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

    def add_folder(self, root: bytes, below: bytes) -> int:
        """Add the folder `below` in an archive whose names begin with `root`; return its number.

        Both end in "/", or are empty.
        """
        self.folder_names += root + below
        self.folder_ends.append(len(self.folder_names))
        self.roots.append(len(root))
        return len(self.roots) - 1

    def add_item(self, folder: int, name: bytes, offset: int, size: int, packed: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.packed.append(packed)
        self.folders.append(folder)
        self.names += name
        self.name_ends.append(len(self.names))

    def build(self) -> Table:
        if self.packed.count(NOT_COMPRESSED) == len(self.packed):
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
