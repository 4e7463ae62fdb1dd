"""Creation of files and directories below one directory, never through links.

Every name is opened relative to the descriptor of its directory, without following links and only if it is
new, so neither an archive nor a concurrent process can redirect a write. Modes are 0644, or 0755 for
executables, minus the umask; times are not restored.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict

from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_headers import printable

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Members of an archive mostly come directory by directory.
_MAX_OPEN_DIRECTORIES = 32


class Tree:
    def __init__(self, root: str) -> None:
        """Open `root`, an existing directory; all paths are relative to it."""
        self._directories: OrderedDict[bytes, int] = OrderedDict()
        self._root = os.open(root, _DIRECTORY)
        self._file: int | None = None

    def make_directory(self, path: bytes) -> None:
        """Create a directory and its parents; existing ones are fine. Raises BadArchive."""
        if path:
            self._open_directory(path)

    def write_file(self, path: bytes, executable: bool, content: Block) -> None:
        """Create a file with this content. Raises BadArchive if the name is taken."""
        descriptor = self._create(path, executable)
        try:
            if content:
                write_all(descriptor, content)
        finally:
            os.close(descriptor)

    def begin_file(self, path: bytes, executable: bool) -> None:
        """Create a file that `append` adds to. Raises BadArchive if the name is taken."""
        self.end_file()
        self._file = self._create(path, executable)

    def append(self, content: Block) -> None:
        assert self._file is not None
        write_all(self._file, content)

    def end_file(self) -> None:
        if self._file is not None:
            descriptor, self._file = self._file, None
            os.close(descriptor)

    def reopen_file(self, path: bytes) -> None:
        """Continue a file that an earlier process began; `append` adds to it."""
        self.end_file()
        self._file = self.open(path, os.O_WRONLY | os.O_APPEND)

    def open(self, path: bytes, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor of an existing file. Raises OSError."""
        folder, _, name = path.rpartition(b"/")
        parent = self._open_directory(folder) if folder else self._root
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)

    def size(self, path: bytes) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            descriptor = self.open(path)
        except FileNotFoundError:
            return None
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def remove(self, path: bytes) -> None:
        """Remove a file if it exists."""
        folder, _, name = path.rpartition(b"/")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._open_directory(folder) if folder else self._root)

    def close(self) -> None:
        self.end_file()
        for descriptor in self._directories.values():
            os.close(descriptor)
        self._directories.clear()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _create(self, path: bytes, executable: bool) -> int:
        folder, _, name = path.rpartition(b"/")
        parent = self._open_directory(folder) if folder else self._root
        try:
            return os.open(name, _NEW_FILE, 0o755 if executable else 0o644, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ELOOP):
                raise BadArchive("the archive has %s more than once" % printable(path)) from error
            raise _explain(error, path) from error

    def _open_directory(self, path: bytes) -> int:
        """Return a descriptor of a directory, which is created if needed; the tree keeps and closes it."""
        known = self._directories.get(path)
        if known is not None:
            self._directories.move_to_end(path)
            return known
        parent_path, _, name = path.rpartition(b"/")
        parent = self._open_directory(parent_path) if parent_path else self._root
        try:
            with contextlib.suppress(FileExistsError):  # opening it fails unless it is a directory
                os.mkdir(name, 0o755, dir_fd=parent)
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise BadArchive(
                    "the archive has %s as a file and as a directory" % printable(path)
                ) from error
            raise _explain(error, path) from error
        self._directories[path] = descriptor
        if len(self._directories) > _MAX_OPEN_DIRECTORIES:
            os.close(self._directories.popitem(last=False)[1])
        return descriptor


def write_all(descriptor: int, content: Block) -> None:
    """Write all of `content`; one write() may accept only a part."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, memoryview(content)[written:])


def _explain(error: OSError, path: bytes) -> Exception:
    """Return a BadArchive for a name that this file system does not allow, else an OSError with the path."""
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        return BadArchive(
            "the file system does not allow the name %s: %s" % (printable(path), error.strerror)
        )
    return OSError(error.errno, error.strerror, os.fsdecode(path))
