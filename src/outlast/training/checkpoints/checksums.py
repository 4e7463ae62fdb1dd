"""Checksums of blocks, computed in parallel with reading and writing, and memory-mapped files.

`zlib.crc32` and reads release the interpreter lock: two cores check twice as fast as one, and while writing,
checksums cost no time beside a slower disk.
"""

from __future__ import annotations

import mmap
import threading
import zlib
from functools import partial
from typing import Any, Callable, Sequence

from outlast.training.background import start_thread
from outlast.training.checkpoints import durable_files
from outlast.training.checkpoints.arrays import ArraySource, max_shown
from outlast.training.errors import Damaged

BLOCK = 1 << 20
#: Minimum bytes for using threads: below, starting one takes longer than it saves.
_THREAD_MINIMUM = 8 * BLOCK


class BlockChecksums:
    """The checksums of the blocks of a buffer, computed in a thread."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._crcs: list[int] = []
        self._thread: threading.Thread | None = None
        if len(content) >= _THREAD_MINIMUM:
            self._thread = start_thread(self._compute)
        if self._thread is None:
            self._compute()

    def _compute(self) -> None:
        content = self._content
        self._crcs = [zlib.crc32(content[at : at + BLOCK]) for at in range(0, len(content), BLOCK)]

    def finish(self) -> list[int]:
        """Wait for the thread and return one CRC32 per block."""
        if self._thread is not None:
            self._thread.join()
        return self._crcs


def check_blocks(fd: int, size: int, crcs: Sequence[int], threads: int) -> None:
    """Read all blocks of a file and compare checksums. Raises Damaged, naming the block, or OSError."""
    threads = threads if size >= _THREAD_MINIMUM else 1
    errors: list[Exception] = []

    def check(first: int) -> None:
        scratch = memoryview(bytearray(min(BLOCK, size)))
        try:
            for index in range(first, len(crcs), threads):
                if errors:
                    return
                block = scratch[: min(BLOCK, size - index * BLOCK)]
                durable_files.read_into(fd, block, index * BLOCK)
                if zlib.crc32(block) != crcs[index]:
                    raise Damaged("block %d does not match its checksum" % index)
        except (OSError, Damaged) as error:
            errors.append(error)

    others = [(number, start_thread(partial(check, number))) for number in range(1, threads)]
    check(0)
    for number, thread in others:
        if thread is None:
            check(number)
        else:
            thread.join()
    if errors:
        raise errors[0]


class MappedFile(ArraySource):
    """The buffers of a verified file, mapped into memory.

    Pages are read when they are touched; a page that is written to becomes private to the process.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.whole = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY))
        #: Offset of the first buffer.
        self.begin = 0
        #: Bytes that may still be referred to, by values with a buffer of their own and by shared ones.
        self._unclaimed = size
        self._unshown = max_shown(size)
        #: The sizes of shared buffers, by offset.
        self._shared: dict[int, int] = {}
        self._cache: dict[Any, Any] = {}

    def _memory(self, offset: int, nbytes: int) -> memoryview:
        if type(offset) is not int or type(nbytes) is not int or nbytes < 0 or offset < 0 or offset % 64:
            raise Damaged("a buffer is out of range or misaligned")
        begin = self.begin + offset
        if begin + nbytes > len(self.whole):
            raise Damaged("a buffer is out of range or misaligned")
        return self.whole[begin : begin + nbytes]

    def own(self, offset: int, nbytes: int) -> memoryview:
        found = self._memory(offset, nbytes)
        self._unclaimed -= nbytes
        if self._unclaimed < 0:
            raise Damaged("its tree refers to more bytes than the file has")
        return found

    def shared(self, offset: int, nbytes: int, shown: int) -> memoryview:
        if offset not in self._shared:
            self._shared[offset] = nbytes
            found = self.own(offset, nbytes)
        else:
            found = self._memory(offset, nbytes)
        if self._shared[offset] != nbytes:
            raise Damaged("arrays that share memory disagree about its size")
        self._unshown -= shown
        if self._unshown < 0:
            raise Damaged("its arrays repeat the bytes of the file too often")
        return found

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]
