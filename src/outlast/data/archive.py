"""A sequence of the items of an archive."""

from __future__ import annotations

import io
import operator
import os
from array import array
from collections import Counter
from typing import Iterable, Sequence, SupportsIndex, overload

from outlast.data import classes as by_place
from outlast.data.archive_file import Content
from outlast.data.classes import Classes
from outlast.data.location import path as find_path
from outlast.data.member import Member

#: Python's file objects copy what they read ahead; so much at a time.
_BUFFER = 1 << 17


class Archive(Sequence[bytes]):
    """The files in a tar, in the tars inside it, or in a zip, as bytes, in the order of the archive.

    suffixes     only names that end so, whatever their case: [".jpg", ".jpeg"]
    classes      only items of these classes, numbered in this order
    below        only what is in this folder or inner archive; classes are found from there on
    nested       whether the tars inside are looked into; otherwise they are items

    The path may be relative to OUTLAST_DATA_DIR. Raises BadArchive, FileNotFoundError, ValueError.
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
        self._content = Content(find_path(path), nested)
        table = self._content.table
        self._classes = by_place.find(table, below)
        #: Numbers of the items in the table; None for all of them.
        self._rows: Sequence[int] | None = None
        if below:
            self._rows = self._rows_of(self._classes)
            if not self._rows:
                raise ValueError("%s has nothing below %r" % (self.path, below))
        if suffixes is not None or classes is not None:
            chosen = self.filter(suffixes=suffixes, classes=classes)
            self._rows, self._classes = chosen._rows, chosen._classes

    @property
    def path(self) -> str:
        return self._content.path

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names; an item's label is the place of its class here. A part of an archive has them all."""
        return self._classes.names

    @property
    def labels(self) -> Sequence[int]:
        """The number of the class of each item."""
        folders = self._content.table.folders
        of_folder = self._classes.of_folder
        if self._rows is not None:
            return array("i", [of_folder[folders[row]] for row in self._rows])
        return array("i", map(of_folder.__getitem__, folders))

    @property
    def names(self) -> list[str]:
        return [self.name(item) for item in range(len(self))]

    def __len__(self) -> int:
        return len(self._content.table) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, item: SupportsIndex) -> bytes: ...

    @overload
    def __getitem__(self, item: slice) -> Archive: ...

    def __getitem__(self, item: SupportsIndex | slice) -> bytes | Archive:
        if isinstance(item, slice):
            return self.subset(range(*item.indices(len(self))))
        return self._content.read(self._row(item))

    def __getitems__(self, items: Iterable[SupportsIndex]) -> list[bytes]:
        """Several at once, as PyTorch asks for a batch; the system fetches them all together."""
        return self._content.read_all([self._row(item) for item in items])

    def view(self, item: SupportsIndex) -> memoryview:
        """Its bytes without a copy. The archive stays mapped as long as a view of it is kept."""
        return self._content.view(self._row(item))

    def open(self, item: SupportsIndex) -> io.BufferedReader:
        """It as a file that can be read and seeked, without reading it whole."""
        row = self._row(item)
        return io.BufferedReader(Member(self._content.view(row), self.name(item)), _BUFFER)

    def name(self, item: SupportsIndex) -> str:
        """Its path in the archive, those of the archives inside included: `train/cat.tar/1.jpg`."""
        return os.fsdecode(self._content.table.name(self._row(item)))

    def label(self, item: SupportsIndex) -> int:
        return self._classes.of_folder[self._content.table.folders[self._row(item)]]

    def subset(self, items: Iterable[SupportsIndex]) -> Archive:
        """These only, in this order. It shares the open archive."""
        return self._part(array("q", [self._row(item) for item in items]), self._classes)

    def filter(
        self, *, suffixes: Iterable[str] | None = None, classes: Sequence[str] | None = None
    ) -> Archive:
        """Those whose names end so (whatever their case), of these classes (numbered in this order)."""
        found = self._classes if classes is None else by_place.choose(self._classes, classes)
        rows = self._rows_of(found)
        if suffixes is not None:
            if isinstance(suffixes, str):
                raise TypeError("suffixes are given as a list, not as the one text %r" % suffixes)
            ends = tuple(os.fsencode(suffix.lower()) for suffix in suffixes)
            base_name = self._content.table.base_name
            rows = array("q", [row for row in rows if base_name(row).lower().endswith(ends)])
            if not rows:
                raise ValueError(
                    "nothing in %s ends in %s; names end in %s"
                    % (self.path, by_place.listed(list(map(os.fsdecode, ends))), self._endings())
                )
        return self._part(rows, found)

    def close(self) -> None:
        """Its parts are closed with it. It can be left out: what is no longer used is closed."""
        self._content.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            held = "%d items, %d classes" % (len(self), len(self.classes))
        except (ValueError, OSError) as error:
            held = str(error)
        return "<Archive %s: %s>" % (self.path, held)

    def _row(self, item: SupportsIndex) -> int:
        number = operator.index(item)
        count = len(self)
        if number < 0:
            number += count
        if not 0 <= number < count:
            raise IndexError(
                "there is no item %d in %s: it has %d" % (operator.index(item), self.path, count)
            )
        return number if self._rows is None else self._rows[number]

    def _rows_of(self, classes: Classes) -> Sequence[int]:
        folders = self._content.table.folders
        held = [number != by_place.NONE for number in classes.of_folder]
        rows = range(len(folders)) if self._rows is None else self._rows
        return array("q", [row for row in rows if held[folders[row]]])

    def _part(self, rows: Sequence[int], classes: Classes) -> Archive:
        part = Archive.__new__(type(self))
        part._content = self._content
        part._rows = rows
        part._classes = classes
        return part

    def _endings(self) -> str:
        endings: Counter[str] = Counter(os.path.splitext(name)[1] or name for name in self.names)
        return (
            by_place.listed([ending for ending, _ in endings.most_common(11)]) or "nothing: it has no items"
        )
