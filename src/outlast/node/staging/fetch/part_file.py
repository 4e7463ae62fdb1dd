"""The sink for one plain file: it is written as `.NAME.part` and renamed when it is complete.

`.NAME.part.json` holds the identity of its bytes. The length of the part is the only record of progress.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Callable

from outlast.node.archives.sink import Block
from outlast.node.locks import try_lock
from outlast.untrusted_files import parse_json, read_file

_BLOCK = 1 << 20
_MAX_NOTE_BYTES = 65536
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: How often the part may be replaced by another process while it is opened.
_TRIES = 10


class PartInUse(OSError):
    """Another process is fetching the same file to the same place."""


class PartFile:
    """A file that grows. All names are relative to one directory descriptor, and links are not followed."""

    def __init__(self, directory: str, name: str) -> None:
        self.place = directory
        self.path = os.path.join(directory, name)
        self._name = name
        self._part = ".%s.part" % name
        self._note = ".%s.part.json" % name
        self._directory: int | None = None
        self._descriptor: int | None = None

    def needs(self, size: int) -> int:
        """Return how many more bytes of disk the complete file of `size` bytes takes."""
        return size - (os.fstat(self._descriptor).st_size if self._descriptor is not None else 0)

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        """Open and lock the part, replay its bytes, and return their number; 0 if it is of another identity.

        Raises PartInUse, OSError.
        """
        if self._directory is None:
            os.makedirs(self.place, exist_ok=True)
            self._directory = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._descriptor is None:
            self._descriptor = self._open_part(self._directory)
        if self._read_note() != identity:
            # Truncated before the note changes: a crash in between leaves no bytes under a wrong identity.
            os.ftruncate(self._descriptor, 0)
            self._write_note(identity)
        return self._replay(self._descriptor, replay)

    def write(self, block: Block) -> None:
        assert self._descriptor is not None, "resume comes first"
        view = memoryview(block)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def restart(self) -> None:
        assert self._descriptor is not None, "resume comes first"
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def finish(self) -> None:
        assert self._descriptor is not None and self._directory is not None, "resume comes first"
        os.fsync(self._descriptor)
        os.rename(self._part, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._note, dir_fd=self._directory)
        try:
            os.fsync(self._directory)
        except OSError as error:
            # Some network file systems cannot sync a directory; the file itself is safe.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                raise
        self.close()

    def close(self) -> None:
        for descriptor in (self._descriptor, self._directory):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._directory = None

    def _open_part(self, directory: int) -> int:
        """Return a locked descriptor of the part, replacing what must not be written. Raises PartInUse."""
        for _ in range(_TRIES):
            try:
                descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666, dir_fd=directory)
            except OSError as error:
                # A link, a socket, or a file of another user.
                if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM):
                    raise
                os.unlink(self._part, dir_fd=directory)
                continue
            try:
                if self._is_ours(descriptor, directory):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise OSError(errno.EBUSY, "another process keeps replacing it", self._part_path())

    def _is_ours(self, descriptor: int, directory: int) -> bool:
        """Lock the part and return True if it still has its name and is a regular file of this user.

        Remove it if it is not a regular file of this user. Raises PartInUse if another process has locked it.
        """
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
            os.unlink(self._part, dir_fd=directory)
            return False
        try:
            # On file systems without locks this does nothing: callers must take turns by other means.
            try_lock(descriptor)
        except BlockingIOError:
            raise PartInUse(
                errno.EBUSY, "another process is fetching this file; wait until it ends", self._part_path()
            ) from None
        try:
            named = os.stat(self._part, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False  # its writer has just finished it and given it its final name
        return (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)

    def _replay(self, descriptor: int, replay: Callable[[Block], None]) -> int:
        os.lseek(descriptor, 0, os.SEEK_SET)
        buffer = memoryview(bytearray(_BLOCK))
        offset = 0
        while True:
            count = os.readv(descriptor, [buffer])
            if count == 0:
                return offset
            replay(buffer[:count])
            offset += count

    def _read_note(self) -> str:
        """Return the identity in the note; empty if there is no readable note."""
        try:
            note = parse_json(read_file(self._note, _MAX_NOTE_BYTES, self._directory))
        except (OSError, ValueError):
            return ""  # absent, a link, of another user, or torn: the part's identity is unknown
        identity = note.get("identity") if isinstance(note, dict) else None
        return identity if isinstance(identity, str) else ""

    def _write_note(self, identity: str) -> None:
        temporary = self._note + ".tmp"  # no other process writes it: we have the lock
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self._directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
        descriptor = os.open(temporary, flags, 0o666, dir_fd=self._directory)
        try:
            try:
                os.write(descriptor, json.dumps({"identity": identity}).encode())
            finally:
                os.close(descriptor)
            os.rename(temporary, self._note, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to raise
                os.unlink(temporary, dir_fd=self._directory)
            raise

    def _part_path(self) -> str:
        return os.path.join(self.place, self._part)
