"""One archive, mapped into memory, with the table of its items.

It is opened on first use, in each process separately. A fork shares the mapping, which is read-only and has
no position that two readers could disturb. Pickling stores the path only: the other process opens the archive
itself, and refuses it if it has changed.
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any, NamedTuple, Sequence

from outlast.data import index_file
from outlast.data.index_file import Fingerprint
from outlast.data.item_table import NOT_COMPRESSED, Table
from outlast.data.readahead import ReadAhead
from outlast.data.scan import scan
from outlast.data.zip_members import inflate
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable


class _Opened(NamedTuple):
    map: mmap.mmap
    view: memoryview
    table: Table
    read_ahead: ReadAhead


class ArchiveFile:
    def __init__(self, path: str, nested: bool) -> None:
        """`nested`: tars inside the archive are read, rather than being items."""
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
        """Return the bytes of the item in this row of the table."""
        content, _, table, read_ahead = self._opened or self._open()
        if read_ahead.is_large:
            read_ahead.request((row,))
        return self._read(content, table, row)

    def read_all(self, rows: Sequence[int]) -> list[bytes]:
        """Return the bytes of several items; the system fetches them concurrently."""
        content, _, table, read_ahead = self._opened or self._open()
        read_ahead.request(rows)
        return [self._read(content, table, row) for row in rows]

    def _read(self, content: mmap.mmap, table: Table, row: int) -> bytes:
        start = table.offsets[row]
        if table.packed and table.packed[row] != NOT_COMPRESSED:
            return self._inflate(content[start : start + table.packed[row]], row)
        return content[start : start + table.sizes[row]]

    def view(self, row: int) -> memoryview:
        """Return the bytes of an item, without a copy unless it is compressed."""
        _, view, table, _ = self._opened or self._open()
        if table.packed and table.packed[row] != NOT_COMPRESSED:
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
            # A view of an item is still in use; the mapping is released with the last of them.
            return

    def _open(self) -> _Opened:
        if self._closed:
            raise ValueError("%s is closed" % self.path)
        # O_NONBLOCK, because opening a pipe would block.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._opened = self._map(descriptor)
        finally:
            os.close(descriptor)
        return self._opened

    def _map(self, descriptor: int) -> _Opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadArchive("%s is not a file" % self.path)
        found = Fingerprint.of(status)
        if self._fingerprint not in (None, found):
            raise BadArchive("%s has changed since it was first opened" % self.path)
        if not found.size:
            raise BadArchive("%s is empty" % self.path)
        content = mmap.mmap(descriptor, found.size, access=mmap.ACCESS_READ)
        table = self._load_table(found, status.st_uid)
        if table is None:
            try:
                with open(descriptor, "rb", closefd=False) as file:
                    table = scan(content, file, self._nested)
            except BadArchive as error:
                content.close()
                raise BadArchive("%s cannot be read in place: %s" % (self.path, error)) from None
            self._save_table(table, found)
        self._fingerprint = found
        return _Opened(content, memoryview(content), table, ReadAhead(content, table))

    def _load_table(self, archive: Fingerprint, owner: int) -> Table | None:
        for path in index_file.index_paths(self.path, self._nested):
            table = index_file.read(path, archive, self._nested, owner)
            if table is not None:
                return table
        return None

    def _save_table(self, table: Table, archive: Fingerprint) -> None:
        for path in index_file.index_paths(self.path, self._nested):
            try:
                index_file.write(path, table, archive, self._nested)
            except OSError:
                # Not writable, or full. The index is optional: it only saves the next process some time.
                continue
            break

    def _inflate(self, packed: bytes, row: int) -> bytes:
        table = self.table
        try:
            return inflate(packed, table.sizes[row])
        except BadArchive as error:
            raise BadArchive("%s: %s: %s" % (self.path, printable(table.name(row)), error)) from None
