"""Checksums of blocks, computed beside the reading and writing, and files as memory.

`zlib.crc32` and reading let other threads run, so that two cores check twice as fast as one and a checksum
costs no time beside a slower disk.
"""

from __future__ import annotations

import mmap
import threading
import zlib
from functools import partial
from typing import Any, Callable, Sequence

from outlast.training.background import start
from outlast.training.checkpoints import durable_files
from outlast.training.checkpoints.arrays import ArraySource
from outlast.training.errors import Damaged

BLOCK = 1 << 20
#: Below this, a thread takes longer to start than to help.
_WORTH_A_THREAD = 8 * BLOCK


class Checksums:
    """Of each block of some memory, in a thread of their own."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._crcs: list[int] = []
        self._thread: threading.Thread | None = None
        if len(content) >= _WORTH_A_THREAD:
            self._thread = start(self._compute)
        if self._thread is None:
            self._compute()

    def _compute(self) -> None:
        content = self._content
        self._crcs = [zlib.crc32(content[at : at + BLOCK]) for at in range(0, len(content), BLOCK)]

    def finish(self) -> list[int]:
        if self._thread is not None:
            self._thread.join()
        return self._crcs


def check_blocks(fd: int, size: int, crcs: Sequence[int], threads: int) -> None:
    """Read all of them. Raises Damaged, naming the block, or OSError."""
    threads = threads if size >= _WORTH_A_THREAD else 1
    troubles: list[Exception] = []

    def check(first: int) -> None:
        scratch = memoryview(bytearray(min(BLOCK, size)))
        try:
            for index in range(first, len(crcs), threads):
                if troubles:
                    return
                block = scratch[: min(BLOCK, size - index * BLOCK)]
                durable_files.read_into(fd, block, index * BLOCK)
                if zlib.crc32(block) != crcs[index]:
                    raise Damaged("block %d does not match its checksum" % index)
        except (OSError, Damaged) as error:
            troubles.append(error)

    others = [(number, start(partial(check, number))) for number in range(1, threads)]
    check(0)
    for number, thread in others:
        if thread is None:
            check(number)
        else:
            thread.join()
    if troubles:
        raise troubles[0]


class Mapped(ArraySource):
    """The buffers of a file that was checked, as memory: pages are read when they are touched, and a page
    that is written to becomes the process's own."""

    def __init__(self, fd: int, size: int) -> None:
        self.whole = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY))
        #: Where buffers begin.
        self.begin = 0
        self._copies = size
        self._made: dict[Any, Any] = {}

    def memory(self, offset: int, nbytes: int) -> memoryview:
        if type(offset) is not int or type(nbytes) is not int or nbytes < 0 or offset < 0 or offset % 64:
            raise Damaged("a buffer is not where the tree says")
        begin = self.begin + offset
        if begin + nbytes > len(self.whole):
            raise Damaged("a buffer is not where the tree says")
        return self.whole[begin : begin + nbytes]

    def copy(self, offset: int, nbytes: int) -> bytearray:
        found = self.memory(offset, nbytes)
        self._copies -= nbytes
        if self._copies < 0:
            raise Damaged("its tree names more bytes than there are")
        return bytearray(found)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
