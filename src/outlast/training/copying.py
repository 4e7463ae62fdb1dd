"""Memory copied into memory, by several threads: one core alone does not copy as fast as memory is.

`memmove` is called without the interpreter's lock, so that the threads run side by side.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Iterable, Tuple

from outlast.training.threads import MOST, start

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
