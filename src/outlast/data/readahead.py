"""Read-ahead hints to the system, so that items are fetched in a few large requests at once.

By default the system reads the neighbours of each missing page, one item after the other. If the archive fits
into memory, all of it will be used in the end: whole blocks around the items of a batch are requested, each
once. If it does not fit, neighbours would be evicted before they are used: only the items are requested.
"""

from __future__ import annotations

import mmap
import os
from typing import Iterable

from outlast.data.item_table import NOT_COMPRESSED, Table

#: log2 of the block size, 512 KiB. Smaller blocks mean more requests, larger ones delay the first items.
_BLOCK_SHIFT = 19


class ReadAhead:
    def __init__(self, content: mmap.mmap, table: Table) -> None:
        self._content = content
        self._table = table
        self._is_supported = hasattr(content, "madvise")  # not on every system
        #: One byte per block: 1 if it was requested.
        self._requested = bytearray((len(content) >> _BLOCK_SHIFT) + 1)
        #: True if memory cannot hold the archive, so that single items are worth requesting.
        self.is_large = self._is_supported and len(content) > _memory_size() // 2
        if self.is_large:
            content.madvise(mmap.MADV_RANDOM)

    def request(self, rows: Iterable[int]) -> None:
        """Ask the system to fetch the items in these rows; does not wait."""
        if not self._is_supported:
            return
        request = self._request_exactly if self.is_large else self._request_blocks
        for row in rows:
            start = self._table.offsets[row]
            length = self._table.packed[row] if self._table.packed else NOT_COMPRESSED
            length = self._table.sizes[row] if length == NOT_COMPRESSED else length
            if length:
                request(start, start + length)

    def _request_exactly(self, start: int, end: int) -> None:
        page = start & -mmap.PAGESIZE
        self._content.madvise(mmap.MADV_WILLNEED, page, end - page)

    def _request_blocks(self, start: int, end: int) -> None:
        for block in range(start >> _BLOCK_SHIFT, (end - 1 >> _BLOCK_SHIFT) + 1):
            if not self._requested[block]:
                self._requested[block] = 1
                # The last block may reach beyond the end: madvise() shortens it.
                self._content.madvise(mmap.MADV_WILLNEED, block << _BLOCK_SHIFT, 1 << _BLOCK_SHIFT)


def _memory_size() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
