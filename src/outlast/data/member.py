"""One item of an archive as a file."""

from __future__ import annotations

import io
from typing import Any


class Member(io.RawIOBase):
    """A read-only, seekable binary file over the bytes of an item.

    Wrapped in an io.BufferedReader it behaves like the result of `open(…, "rb")`.
    """

    def __init__(self, view: memoryview, name: str) -> None:
        super().__init__()
        self._view = view
        self._position = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._check_open()
        target = memoryview(buffer).cast("B")
        part = self._view[self._position : self._position + len(target)]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        if start + offset < 0:
            raise ValueError("the position %d is before the beginning" % (start + offset))
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def close(self) -> None:
        if not self.closed:
            self._view.release()
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("%s is closed" % self.name)
