"""One item as a file."""

from __future__ import annotations

import io
from typing import Any


class Member(io.RawIOBase):
    """Reads from a view; wrapped in a BufferedReader it is what `open(…, "rb")` gives."""

    def __init__(self, view: memoryview, name: str) -> None:
        super().__init__()
        self._view = view
        self._place = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._check()
        target = memoryview(buffer).cast("B")
        part = self._view[self._place : self._place + len(target)]
        target[: len(part)] = part
        self._place += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self._view)}[whence]
        if start + offset < 0:
            raise ValueError("a place before the beginning: %d" % (start + offset))
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        self._check()
        return self._place

    def close(self) -> None:
        if not self.closed:
            self._view.release()
        super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("%s is closed" % self.name)
