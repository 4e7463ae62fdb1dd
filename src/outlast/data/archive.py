"""An archive as a sequence of its items."""

from __future__ import annotations

import io
import operator
import os
from array import array
from collections import Counter
from typing import Iterable, Sequence, SupportsIndex, overload

from outlast.data import classes as item_classes
from outlast.data.archive_file import ArchiveFile
from outlast.data.classes import Classes
from outlast.data.location import path as find_path
from outlast.data.member import Member

#: Bytes that `Archive.open` reads ahead; they are copied.
_BUFFER_SIZE = 1 << 17


class Archive(Sequence[bytes]):
    """The files in a tar, in the tars inside it, or in a zip: a sequence of bytes in archive order.

    path         of the archive; looked up in OUTLAST_DATA_DIR if it does not exist
    suffixes     only names with one of these endings, in upper or lower case: [".jpg", ".jpeg"]
    classes      only items of these classes, numbered in this order
    below        only what is in this folder or inner archive; classes are determined below it
    nested       if true, tars inside the archive are read too; otherwise each is one item

    Items are numbered from 0; negative numbers count from the end, and a slice is again an Archive. Threads
    and processes may share one: a pickled Archive is opened again from its path.

    Raises BadArchive if the file cannot be read safely as an archive, FileNotFoundError if it does not exist,
    and ValueError if no item is left.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        suffixes: Iterable[str] | None = None,
        classes: Sequence[str] | None = None,
        below: str = "",
        nested: bool = True,
    ) -> None:
        self._file = ArchiveFile(find_path(path), nested)
        table = self._file.table
        self._classes = item_classes.find_classes(table, below)
        #: The table row of each item; None if all rows are items.
        self._rows: Sequence[int] | None = None
        if below:
            self._rows = self._select_rows(self._classes)
            if not self._rows:
                raise ValueError("%s has nothing below %r" % (self.path, below))
        if suffixes is not None or classes is not None:
            chosen = self.filter(suffixes=suffixes, classes=classes)
            self._rows, self._classes = chosen._rows, chosen._classes

    @property
    def path(self) -> str:
        """The absolute path of the archive."""
        return self._file.path

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; an item's label is an index into them.

        They are sorted unless they were given. A part of an archive has the classes of the whole.
        """
        return self._classes.names

    @property
    def labels(self) -> Sequence[int]:
        """The label of each item, as an array of integers."""
        folders = self._file.table.folders
        of_folder = self._classes.of_folder
        if self._rows is not None:
            return array("i", [of_folder[folders[row]] for row in self._rows])
        return array("i", map(of_folder.__getitem__, folders))

    @property
    def names(self) -> list[str]:
        """The path of each item in the archive; see `name`."""
        return [self.name(item) for item in range(len(self))]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._file.table) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, item: SupportsIndex) -> bytes: ...

    @overload
    def __getitem__(self, item: slice) -> Archive: ...

    def __getitem__(self, item: SupportsIndex | slice) -> bytes | Archive:
        """Return the bytes of an item, or an Archive of the items in a slice. Raises IndexError."""
        if isinstance(item, slice):
            return self.subset(range(*item.indices(len(self))))
        return self._file.read(self._row(item))

    def __getitems__(self, items: Iterable[SupportsIndex]) -> list[bytes]:
        """Return the bytes of several items, as PyTorch requests a batch; they are fetched concurrently."""
        return self._file.read_all([self._row(item) for item in items])

    def view(self, item: SupportsIndex) -> memoryview:
        """Return the bytes of an item, without a copy unless it is compressed.

        The archive stays mapped into memory as long as the view is in use.
        """
        return self._file.view(self._row(item))

    def open(self, item: SupportsIndex) -> io.BufferedReader:
        """Return an item as a binary file that can be read and seeked, without reading all of it."""
        row = self._row(item)
        return io.BufferedReader(Member(self._file.view(row), self.name(item)), _BUFFER_SIZE)

    def name(self, item: SupportsIndex) -> str:
        """Return the path of an item in the archive, including inner archives: `train/cat.tar/1.jpg`."""
        return os.fsdecode(self._file.table.name(self._row(item)))

    def label(self, item: SupportsIndex) -> int:
        """Return the number of an item's class, an index into `classes`."""
        return self._classes.of_folder[self._file.table.folders[self._row(item)]]

    def subset(self, items: Iterable[SupportsIndex]) -> Archive:
        """Return an Archive of these items, in this order. It shares the open file."""
        return self._part(array("q", [self._row(item) for item in items]), self._classes)

    def filter(
        self, *, suffixes: Iterable[str] | None = None, classes: Sequence[str] | None = None
    ) -> Archive:
        """Return an Archive of the items that match all conditions. It shares the open file.

        suffixes     only names with one of these endings, in upper or lower case
        classes      only items of these classes, numbered in this order

        Raises ValueError if no item is left, and TypeError for a string in place of a list.
        """
        found = self._classes if classes is None else item_classes.select_classes(self._classes, classes)
        rows = self._select_rows(found)
        if suffixes is not None:
            if isinstance(suffixes, str):
                raise TypeError("suffixes must be a list of strings, not the string %r" % suffixes)
            endings = tuple(os.fsencode(suffix.lower()) for suffix in suffixes)
            base_name = self._file.table.base_name
            rows = array("q", [row for row in rows if base_name(row).lower().endswith(endings)])
            if not rows:
                raise ValueError(
                    "no name in %s ends in %s; names end in %s"
                    % (
                        self.path,
                        item_classes.format_names(list(map(os.fsdecode, endings))),
                        self._format_endings(),
                    )
                )
        return self._part(rows, found)

    def close(self) -> None:
        """Close the archive and all parts of it; views that are in use stay valid.

        Calling it is optional: an archive is closed when it is no longer used.
        """
        self._file.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            content = "%d items, %d classes" % (len(self), len(self.classes))
        except (ValueError, OSError) as error:
            content = str(error)
        return "<Archive %s: %s>" % (self.path, content)

    def _row(self, item: SupportsIndex) -> int:
        """Return the table row of an item. Raises IndexError."""
        number = operator.index(item)
        count = len(self)
        if number < 0:
            number += count
        if not 0 <= number < count:
            raise IndexError(
                "there is no item %d in %s: it has %d" % (operator.index(item), self.path, count)
            )
        return number if self._rows is None else self._rows[number]

    def _select_rows(self, classes: Classes) -> Sequence[int]:
        """Return the rows of the items that have one of these classes."""
        folders = self._file.table.folders
        is_selected = [number != item_classes.NO_CLASS for number in classes.of_folder]
        rows = range(len(folders)) if self._rows is None else self._rows
        return array("q", [row for row in rows if is_selected[folders[row]]])

    def _part(self, rows: Sequence[int], classes: Classes) -> Archive:
        part = Archive.__new__(type(self))
        part._file = self._file
        part._rows = rows
        part._classes = classes
        return part

    def _format_endings(self) -> str:
        """Return the most common endings of names, for a message."""
        endings: Counter[str] = Counter(os.path.splitext(name)[1] or name for name in self.names)
        most_common = [ending for ending, _ in endings.most_common(11)]
        return item_classes.format_names(most_common) or "nothing: it has no items"
