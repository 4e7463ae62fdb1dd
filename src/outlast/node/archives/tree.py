"""Files and directories below one directory, made by name and never through what is there already.

Every name is opened relative to the descriptor of its directory, without following links and only if it is
new, so nothing that an archive says, or that somebody puts there meanwhile, leads a write elsewhere. Modes
are 0644, or 0755 for what may be executed, less the umask; times are those of the unpacking.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict

from outlast.node.archives.sink import BadArchive, Block
from outlast.node.archives.tar_headers import shown

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Members of an archive mostly come folder by folder.
_OPEN_FOLDERS = 32


class Tree:
    def __init__(self, root: str) -> None:
        """`root` is an existing directory."""
        self._folders: OrderedDict[bytes, int] = OrderedDict()
        self._root = os.open(root, _DIRECTORY)
        self._file: int | None = None

    def folder(self, path: bytes) -> None:
        """Make a directory and those above it; one that is there is fine. Raises BadArchive."""
        if path:
            self._descriptor(path)

    def whole(self, path: bytes, executable: bool, content: Block) -> None:
        """A file at once. Raises BadArchive if the name is taken."""
        descriptor = self._create(path, executable)
        try:
            if content:
                write_all(descriptor, content)
        finally:
            os.close(descriptor)

    def begin(self, path: bytes, executable: bool) -> None:
        self.end()
        self._file = self._create(path, executable)

    def more(self, content: Block) -> None:
        assert self._file is not None
        write_all(self._file, content)

    def end(self) -> None:
        if self._file is not None:
            descriptor, self._file = self._file, None
            os.close(descriptor)

    def go_on(self, path: bytes) -> None:
        """Add to a file that an earlier process began."""
        self.end()
        self._file = self.open(path, os.O_WRONLY | os.O_APPEND)

    def open(self, path: bytes, how: int = os.O_RDONLY) -> int:
        """A descriptor of a file that is there. Raises OSError."""
        folder, _, name = path.rpartition(b"/")
        above = self._descriptor(folder) if folder else self._root
        return os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)

    def size(self, path: bytes) -> int | None:
        """None if there is no such file."""
        try:
            descriptor = self.open(path)
        except FileNotFoundError:
            return None
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def remove(self, path: bytes) -> None:
        """A file, if it is there."""
        folder, _, name = path.rpartition(b"/")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor(folder) if folder else self._root)

    def close(self) -> None:
        self.end()
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._folders.clear()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _create(self, path: bytes, executable: bool) -> int:
        folder, _, name = path.rpartition(b"/")
        above = self._descriptor(folder) if folder else self._root
        try:
            return os.open(name, _NEW, 0o755 if executable else 0o644, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ELOOP):
                raise BadArchive("the archive has %s more than once" % shown(path)) from error
            raise _explained(error, path) from error

    def _descriptor(self, path: bytes) -> int:
        known = self._folders.get(path)
        if known is not None:
            self._folders.move_to_end(path)
            return known
        above_path, _, name = path.rpartition(b"/")
        above = self._descriptor(above_path) if above_path else self._root
        try:
            with contextlib.suppress(FileExistsError):  # the line after finds out what it is
                os.mkdir(name, 0o755, dir_fd=above)
            descriptor = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise BadArchive("the archive has %s as a file and as a directory" % shown(path)) from error
            raise _explained(error, path) from error
        self._folders[path] = descriptor
        if len(self._folders) > _OPEN_FOLDERS:
            os.close(self._folders.popitem(last=False)[1])
        return descriptor


def write_all(descriptor: int, content: Block) -> None:
    """The kernel may take less than it is given."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, memoryview(content)[written:])


def _explained(error: OSError, path: bytes) -> Exception:
    """A name that this file system cannot have is the archive's fault, all else is the disk's."""
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        return BadArchive("the file system does not take the name %s: %s" % (shown(path), error.strerror))
    return OSError(error.errno, error.strerror, os.fsdecode(path))
