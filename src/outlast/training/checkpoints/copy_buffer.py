"""A reusable buffer for the copy of a state, and copying with several threads.

One core cannot copy as fast as the memory allows. `memmove` releases the interpreter lock, so threads run in
parallel.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from contextlib import suppress
from typing import Iterable, Tuple

from outlast.training.background import MAX_THREADS, start_thread

#: Target address, source address, bytes.
Piece = Tuple[int, int, int]

#: Copies are divided into chunks of this size, because one tensor may be most of a state.
_CHUNK = 8 << 20
#: Minimum bytes for using threads: below, starting one takes longer than it saves.
_THREAD_MINIMUM = 32 << 20


def address_of(memory: memoryview) -> int:
    """Return the address of the first byte; the memory must be writable and not empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def copy(pieces: Iterable[Piece]) -> None:
    """Copy all pieces, which must not overlap. The memory must stay valid until this returns."""
    parts = deque(
        (target + at, source + at, min(_CHUNK, nbytes - at))
        for target, source, nbytes in pieces
        for at in range(0, nbytes, _CHUNK)
    )

    def work() -> None:
        while True:
            try:
                part = parts.popleft()
            except IndexError:
                return
            ctypes.memmove(*part)

    is_large = sum(nbytes for _, _, nbytes in parts) >= _THREAD_MINIMUM
    others = [start_thread(work) for _ in range(1, MAX_THREADS)] if is_large else []
    try:
        work()
    finally:
        # After an interrupt, no thread may still copy when the exception reaches the owner of the memory.
        parts.clear()
        for thread in others:
            if thread is not None:
                thread.join()


_HUGE_PAGE = 2 << 20
_MAP_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
#: Forked processes do not need the buffer, and direct writes must not read their copies of its pages.
_ADVICE = ("MADV_HUGEPAGE", "MADV_DONTFORK")
#: Room for growth, as a fraction (1/16) of the size: states grow a little, for example by a list of losses.
#: Unused, it takes no memory.
_HEADROOM = 16


class CopyBuffer:
    """One block of memory that is kept from save to save.

    Copying into existing pages is five times faster than into new ones, and huge pages are created faster
    than small ones. There is only one buffer, so a state is in memory twice, never three times.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._prefaulting: _Prefaulting | None = None

    def preallocate(self, size: int) -> None:
        """Allocate `size` bytes in the background, unless a buffer exists. Errors are left to `get`."""
        if self._memory is None:
            with suppress(OSError):  # `get` fails again and raises
                self._memory = _map_memory(size)
                self._prefaulting = _Prefaulting(self._memory, size)

    def get(self, size: int) -> memoryview:
        """Return a page-aligned buffer of `size` bytes; contents undefined. Later calls reuse it.

        Raises OSError if the memory cannot be allocated.
        """
        if self._prefaulting is not None:
            self._prefaulting.stop()
            self._prefaulting = None
        if self._memory is None or not size <= len(self._memory) <= 2 * size + _HUGE_PAGE:
            self._memory = None  # free the old memory before allocating
            self._memory = _map_memory(size)
        return memoryview(self._memory)[:size]


def _map_memory(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, -(-max(size + size // _HEADROOM, 1) // _HUGE_PAGE) * _HUGE_PAGE, flags=_MAP_FLAGS)
    for advice in _ADVICE:
        with suppress(OSError, AttributeError):  # advice that this system does not support
            memory.madvise(getattr(mmap, advice))
    return memory


class _Prefaulting:
    """A thread that touches new pages until it is stopped or the script ends."""

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        self._memory, self._size = memory, size
        self._is_wanted = True
        self._thread = start_thread(self._work)

    def stop(self) -> None:
        """Stop the thread; when this returns, it writes nothing more."""
        self._is_wanted = False
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        begin = address_of(memoryview(self._memory))
        for at in range(0, self._size, _HUGE_PAGE):
            if not self._is_wanted or not threading.main_thread().is_alive():
                return
            prefault(begin + at, min(_HUGE_PAGE, self._size - at))


def prefault(address: int, nbytes: int) -> None:
    """Write zeros to this memory, with the interpreter lock released."""
    ctypes.memset(address, 0, nbytes)
