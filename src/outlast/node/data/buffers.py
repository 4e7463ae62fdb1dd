"""Memory between a connection and the disk."""

from __future__ import annotations

import queue
import time
from collections import deque


class Buffers:
    """Blocks that go round between one connection, the sink and the digests. Made when first needed.

    The one that came back last goes out first: it is still in the processor's cache.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._free: deque[memoryview] = deque()
        #: One entry for each that is free, and one for the end.
        self._returned: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._unmade = count
        self._count = count
        self._closed = False
        #: Seconds for which there was none: the disk, or a digest, is slower than the network.
        self.waited = 0.0

    def take(self) -> memoryview | None:
        """Waits for one; None: closed."""
        try:
            self._returned.get_nowait()
        except queue.Empty:
            if self._unmade:
                self._unmade -= 1
                return memoryview(bytearray(self.size))
            began = time.monotonic()
            self._returned.get()
            self.waited += time.monotonic() - began
        return None if self._closed else self._free.pop()

    def grow(self, count: int) -> None:
        """So many in all; called by whoever takes."""
        self._unmade += max(0, count - self._count)
        self._count = max(self._count, count)

    def give(self, buffer: memoryview) -> None:
        self._free.append(buffer)
        self._returned.put(None)

    def close(self) -> None:
        self._closed = True
        self._returned.put(None)
