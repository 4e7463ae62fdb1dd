"""One archive, mapped into memory, with its table: opened when it is first needed, in each process anew.

A fork shares the mapping, which is read only and has no position that two readers could fight over. What is
pickled is the path: the other process opens it itself, and finds out if it is no longer the same archive.
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any, NamedTuple, Sequence

from outlast.data import index_file
from outlast.data.index_file import Fingerprint
from outlast.data.item_table import AS_IT_IS, Table
from outlast.data.readahead import Advice
from outlast.data.scan import scan
from outlast.data.zip_members import inflate
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown


class _Opened(NamedTuple):
    map: mmap.mmap
    view: memoryview
    table: Table
    advice: Advice


class Content:
    def __init__(self, path: str, nested: bool) -> None:
        self.path = os.path.abspath(path)
        self._nested = nested
        self._fingerprint: Fingerprint | None = None
        self._opened: _Opened | None = None
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def table(self) -> Table:
        return (self._opened or self._open()).table

    def read(self, row: int) -> bytes:
        content, _, table, advice = self._opened or self._open()
        if advice.is_large:
            advice.ahead((row,))
        return self._read(content, table, row)

    def read_all(self, rows: Sequence[int]) -> list[bytes]:
        """Asked for together, they are fetched all at once rather than one by one."""
        content, _, table, advice = self._opened or self._open()
        advice.ahead(rows)
        return [self._read(content, table, row) for row in rows]

    def _read(self, content: mmap.mmap, table: Table, row: int) -> bytes:
        start = table.offsets[row]
        if table.packed and table.packed[row] != AS_IT_IS:
            return self._inflated(content[start : start + table.packed[row]], row)
        return content[start : start + table.sizes[row]]

    def view(self, row: int) -> memoryview:
        """Without a copy, unless the item is compressed."""
        _, view, table, _ = self._opened or self._open()
        if table.packed and table.packed[row] != AS_IT_IS:
            return memoryview(self.read(row))
        start = table.offsets[row]
        return view[start : start + table.sizes[row]]

    def close(self) -> None:
        opened, self._opened, self._closed = self._opened, None, True
        if opened is None:
            return
        try:
            opened.view.release()
            opened.map.close()
        except BufferError:
            # A view of an item is still in use somewhere; the mapping goes with the last of them.
            return

    def _open(self) -> _Opened:
        if self._closed:
            raise ValueError("%s is closed" % self.path)
        # A pipe would make the opening wait for ever.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._opened = self._mapped(descriptor)
        finally:
            os.close(descriptor)
        return self._opened

    def _mapped(self, descriptor: int) -> _Opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadArchive("%s is not a file" % self.path)
        found = Fingerprint.of(status)
        if self._fingerprint not in (None, found):
            raise BadArchive("%s is not the archive any more that it was: it has changed" % self.path)
        if not found.size:
            raise BadArchive("%s is empty" % self.path)
        content = mmap.mmap(descriptor, found.size, access=mmap.ACCESS_READ)
        table = self._find_table(found, status.st_uid)
        if table is None:
            try:
                with open(descriptor, "rb", closefd=False) as file:
                    table = scan(content, file, self._nested)
            except BadArchive as error:
                content.close()
                raise BadArchive("%s cannot be read in place: %s" % (self.path, error)) from None
            self._keep_table(table, found)
        self._fingerprint = found
        return _Opened(content, memoryview(content), table, Advice(content, table))

    def _find_table(self, archive: Fingerprint, owner: int) -> Table | None:
        for place in index_file.places(self.path, self._nested):
            table = index_file.read(place, archive, self._nested, owner)
            if table is not None:
                return table
        return None

    def _keep_table(self, table: Table, archive: Fingerprint) -> None:
        for place in index_file.places(self.path, self._nested):
            try:
                index_file.write(place, table, archive, self._nested)
            except OSError:
                # Not writable, or full: the next place, or none. It only saves the next process some time.
                continue
            break

    def _inflated(self, packed: bytes, row: int) -> bytes:
        table = self.table
        try:
            return inflate(packed, table.sizes[row])
        except BadArchive as error:
            raise BadArchive("%s: %s: %s" % (self.path, shown(table.name(row)), error)) from None
