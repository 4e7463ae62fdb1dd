"""Memory copied into memory, by several threads: one core alone does not copy as fast as memory is.

`memmove` is called without the interpreter's lock, so that the threads run side by side.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from contextlib import suppress
from typing import Iterable, Tuple

from outlast.training.background import MOST, start

#: Where to, where from, how many bytes.
Piece = Tuple[int, int, int]

#: A tensor may be nearly all of a state: it is shared out in parts of this size.
_PART = 8 << 20
#: Below this, a thread takes longer to start than to help.
_WORTH_A_THREAD = 32 << 20


def address_of(memory: memoryview) -> int:
    """Of its first byte; it must be writable, and not empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def copy(pieces: Iterable[Piece]) -> None:
    """All of them, none of which overlap. The memory must be there until this returns."""
    parts = deque(
        (target + at, source + at, min(_PART, nbytes - at))
        for target, source, nbytes in pieces
        for at in range(0, nbytes, _PART)
    )

    def work() -> None:
        while True:
            try:
                part = parts.popleft()
            except IndexError:
                return
            ctypes.memmove(*part)

    share = sum(nbytes for _, _, nbytes in parts) >= _WORTH_A_THREAD
    others = [start(work) for _ in range(1, MOST)] if share else []
    try:
        work()
    finally:
        # Nobody may still be copying when an interrupt is on its way to whoever owns the memory.
        parts.clear()
        for thread in others:
            if thread is not None:
                thread.join()


# Memory that a state is copied into before it is written, kept from save to save.
#
# Pages that are there already are copied into five times faster than fresh ones, and huge ones are made
# faster than small ones. There is one such memory: a state is in memory twice, never three times.
_HUGE = 2 << 20
_OURS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
#: Forked processes have no use for it, and a disk that reads from it must not meet their copies of its pages.
_ADVICE = ("MADV_HUGEPAGE", "MADV_DONTFORK")
#: States grow a little, by a list of losses: this part of them is room for that. Unused, it is no memory.
_ROOM = 16


class CopyBuffer:
    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._making: _Making | None = None

    def prepare(self, size: int) -> None:
        """So many bytes will be asked for: make them in the meantime, unless there are some."""
        if self._memory is None:
            with suppress(OSError):  # `lend` will meet it again, where somebody hears of it
                self._memory = _mapped(size)
                self._making = _Making(self._memory, size)

    def lend(self, size: int) -> memoryview:
        """So many bytes, with whatever is in them, beginning with a page; the same ones at the next call."""
        if self._making is not None:
            self._making.stop()
            self._making = None
        if self._memory is None or not size <= len(self._memory) <= 2 * size + _HUGE:
            self._memory = None  # first the old ones go, then new ones come
            self._memory = _mapped(size)
        return memoryview(self._memory)[:size]


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, -(-max(size + size // _ROOM, 1) // _HUGE) * _HUGE, flags=_OURS)
    for advice in _ADVICE:
        with suppress(OSError, AttributeError):  # what this system does not know is no loss
            memory.madvise(getattr(mmap, advice))
    return memory


class _Making:
    """A thread that touches fresh pages, until it is stopped or the script ends."""

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        self._memory, self._size = memory, size
        self._wanted = True
        self._thread = start(self._work)

    def stop(self) -> None:
        """Nothing is touched any more when this returns: what is written now stays."""
        self._wanted = False
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        begin = address_of(memoryview(self._memory))
        for at in range(0, self._size, _HUGE):
            if not self._wanted or not threading.main_thread().is_alive():
                return
            touch(begin + at, min(_HUGE, self._size - at))


def touch(address: int, nbytes: int) -> None:
    """Without the interpreter's lock: the training goes on."""
    ctypes.memset(address, 0, nbytes)
