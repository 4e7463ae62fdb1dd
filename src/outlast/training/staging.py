"""Memory that a state is copied into before it is written, kept from save to save.

Pages that are there already are copied into five times faster than fresh ones, and huge ones are made
faster than small ones. There is one such memory: a state is in memory twice, never three times.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_HUGE = 2 << 20


class Stage:
    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def lend(self, size: int) -> memoryview:
        """So many bytes, with whatever is in them; they are the same at the next call."""
        if self._memory is None or not size <= len(self._memory) <= 2 * size + _HUGE:
            self._memory = None  # first the old ones go, then new ones come
            self._memory = mmap.mmap(-1, -(-max(size, 1) // _HUGE) * _HUGE)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # where the kernel has none, small ones do
                    self._memory.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(self._memory)[:size]
