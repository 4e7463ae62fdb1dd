"""Detection of a training that starts from the beginning although an earlier attempt has saved something.

It never reads what was saved, and writes it anew. The kernel reports that (inotify), whatever the program is.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Sequence

from outlast.untrusted_files import open_file

_IN_ACCESS = 0x1
_IN_MODIFY = 0x2
#: A file is closed that was not opened for writing. One that is mapped into memory has no other event.
_IN_CLOSE_NOWRITE = 0x10
_IN_Q_OVERFLOW = 0x4000
_READ = _IN_ACCESS | _IN_CLOSE_NOWRITE
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_END_BYTES = 64
#: More files are not watched: a limit for the memory of the kernel.
_MOST_FILES = 1000


class ReadFiles:
    """Watches files from the start of a training. What is read after it was changed is the training's own.

    A file that was continued, and not written anew, counts as read.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._descriptor: int | None = None
        #: By the kernel's number for a file: its path, until the first event.
        self._untouched: dict[int, str] = {}
        self._read = False
        #: By path: size and last bytes.
        self._ends: dict[str, tuple[int, bytes]] = {}
        if not paths or len(paths) > _MOST_FILES:
            return
        try:
            self._descriptor = self._watch(paths)
        except (OSError, AttributeError):
            self.close()  # this system does not have it, or no more of it

    def _watch(self, paths: Sequence[str]) -> int:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for path in paths:
            self._ends[path] = _read_end(path)
            number: int = library.inotify_add_watch(descriptor, os.fsencode(path), _READ | _IN_MODIFY)
            if number < 0:
                os.close(descriptor)
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
            self._untouched[number] = path
        return descriptor

    def none_was_read(self) -> bool:
        """Return True if no file was read; False also if that is unknown. Call it once: it reads, too."""
        if self._descriptor is None:
            return False
        while True:
            try:
                content = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return not self._read and not any(map(self._was_continued, self._ends))
            except OSError:
                return False
            self._note(content)

    def _was_continued(self, path: str) -> bool:
        size, end = self._ends[path]
        try:
            with open_file(path) as file:
                is_longer = os.fstat(file.fileno()).st_size > size
                file.seek(size - len(end))
                return is_longer and bool(end) and file.read(len(end)) == end
        except OSError:
            return False

    def _note(self, content: bytes) -> None:
        at = 0
        while at + _EVENT.size <= len(content):
            number, mask, _, length = _EVENT.unpack_from(content, at)
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW or (number in self._untouched and mask & _READ):
                self._read = True
            self._untouched.pop(number, None)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read_end(path: str) -> tuple[int, bytes]:
    """Return the size of a file and its last bytes. Raises OSError."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END_BYTES))
        return size, file.read(min(size, _END_BYTES))
