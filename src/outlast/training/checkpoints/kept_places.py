"""The place of kept files on disk: read and replaced below directory descriptors, never through a link.

What is at the place may have come from another attempt, on a machine of somebody else: a link there must not
make a training process write to a file elsewhere, nor put the content of one into a checkpoint.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, Mapping

from outlast.training.checkpoints import durable_files
from outlast.untrusted_files import Entry, directory_below, open_directory, open_file, remove, walk

#: How often a file is created again because another process of the attempt restores the same one.
_MAX_TRIES = 1000
_NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)


class KeptPlace:
    """The file or directory `relative` below the directory `top`, whose content is kept.

    `owned`: what is in the way is removed. Otherwise it is moved to a directory beside the place, with a
    warning, because it may be somebody else's.
    """

    def __init__(self, top: str, relative: str, owned: bool, warn: Callable[[str], None]) -> None:
        self._top = top or os.curdir
        *self._folders, self._name = relative.split("/")
        self._path = os.path.join(top, relative)
        self._owned = owned
        self._warn = warn
        self._aside: str | None = None

    def read(self) -> dict[str, bytes]:
        """Return the content of all regular files, by path; '' if the place is itself a file. Raises OSError.

        Links are left out, with a warning if the place itself is one.
        """
        found = {}
        for entry in self._files():
            # A file may be removed or replaced meanwhile, such as an old log.
            with suppress(FileNotFoundError), open_file(entry.name, entry.dir_fd) as file:
                found[entry.path] = file.read()
        return found

    def _files(self) -> Iterator[Entry]:
        """Yield the regular files, with paths relative to the place."""
        try:
            with directory_below(self._top, "/".join(self._folders)) as parent:
                status = os.stat(self._name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield Entry("", self._name, parent, status)
                elif stat.S_ISDIR(status.st_mode):
                    inner = open_directory(self._name, parent)
                    try:
                        yield from (entry for entry in walk(inner) if entry.is_file)
                    finally:
                        os.close(inner)
                elif stat.S_ISLNK(status.st_mode):
                    self._warn("%s is a link; its files are not kept" % self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
            self._warn("the way to %s is not a directory; no files are kept there" % self._path)

    def replace(self, files: Mapping[str, memoryview]) -> None:
        """Make the place hold exactly these files, and links and directories that are not in their way.

        Raises OSError.
        """
        for entry in self._files():
            if entry.path not in files:
                self._clear(entry.name, entry.dir_fd, entry.path)
        if files:
            os.makedirs(self._top, exist_ok=True)
        for path, content in files.items():
            *folders, name = [self._name, *path.split("/")] if path else [self._name]
            with self._directory([*self._folders, *folders]) as parent:
                self._write(name, parent, path, content)
        if self._aside is not None:
            self._warn("files written to %s after the last save were moved to %s" % (self._path, self._aside))

    @contextmanager
    def _directory(self, names: list[str]) -> Iterator[int]:
        """Yield a descriptor of a directory below `top`, which is created where it is missing."""
        with directory_below(self._top) as top:
            descriptor = os.dup(top)
        try:
            for position, name in enumerate(names):
                inner = self._open_or_create(name, descriptor, "/".join(names[: position + 1]))
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_or_create(self, name: str, parent: int, path: str) -> int:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        try:
            return open_directory(name, parent)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
        self._clear(name, parent, path)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        return open_directory(name, parent)

    def _write(self, name: str, parent: int, path: str, content: memoryview) -> None:
        """Create a file in place of what has its name; never write to a file that has other names, too."""
        for _ in range(_MAX_TRIES):
            try:
                if stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=parent)
                else:
                    self._clear(name, parent, path)
            except FileNotFoundError:
                pass  # there is none yet
            with suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o666, dir_fd=parent)
                try:
                    durable_files.write_all(descriptor, content)
                finally:
                    os.close(descriptor)
                return
        raise FileExistsError(errno.EEXIST, "other processes create it again and again", self._path)

    def _clear(self, name: str, parent: int, path: str) -> None:
        """Remove what has this name, or move it to the directory beside the place."""
        if self._owned:
            remove(name, parent)
            return
        if self._aside is None:
            self._aside = "%s.aside-%s" % (self._path, secrets.token_hex(4))
        target = os.path.join(self._aside, path or self._name)
        while os.path.lexists(target):
            target += "~"  # a directory whose files were moved before
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with suppress(FileNotFoundError):
            os.rename(name, target, src_dir_fd=parent)
