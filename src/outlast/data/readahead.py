"""Tells the system what of an archive will be read, so that it is fetched in few large requests at once.

Left alone, the system reads the neighbours of each page that is missing, one item after the other. Of an
archive that fits into memory all will be wanted in the end: whole blocks around the items of a batch are
asked for, each once. Of a larger one the neighbours would be thrown out before their turn: just the items are
asked for.
"""

from __future__ import annotations

import mmap
import os
from typing import Iterable

from outlast.data.item_table import AS_IT_IS, Table

#: 512 KiB. Smaller ones are more requests, larger ones make the first items wait for longer.
_SHIFT = 19


class Advice:
    def __init__(self, content: mmap.mmap, table: Table) -> None:
        self._content = content
        self._table = table
        self._known = hasattr(content, "madvise")  # not every system has it
        self._asked = bytearray((len(content) >> _SHIFT) + 1)
        #: Whether memory cannot hold the archive, so that single items are worth asking for.
        self.is_large = self._known and len(content) > _memory() // 2
        if self.is_large:
            content.madvise(mmap.MADV_RANDOM)

    def ahead(self, rows: Iterable[int]) -> None:
        """These will be read next."""
        if not self._known:
            return
        ask = self._exactly if self.is_large else self._around
        for row in rows:
            start = self._table.offsets[row]
            length = self._table.packed[row] if self._table.packed else AS_IT_IS
            length = self._table.sizes[row] if length == AS_IT_IS else length
            if length:
                ask(start, start + length)

    def _exactly(self, start: int, end: int) -> None:
        page = start & -mmap.PAGESIZE
        self._content.madvise(mmap.MADV_WILLNEED, page, end - page)

    def _around(self, start: int, end: int) -> None:
        for block in range(start >> _SHIFT, (end - 1 >> _SHIFT) + 1):
            if not self._asked[block]:
                self._asked[block] = 1
                # Beyond the end of the archive nothing is asked for: madvise() shortens the last one.
                self._content.madvise(mmap.MADV_WILLNEED, block << _SHIFT, 1 << _SHIFT)


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
