"""This user's directory in a cache that users may share, held open and compared with its path.

Users who can rename things in the cache directory could put a directory of theirs in the place of this one,
at any time. So a cache directory in which everybody could do that is refused, one in which a group could do
it gives a warning, and the directory that the path leads to is compared with the one that was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import ContextManager, Iterator

from outlast.untrusted_files import directory_below, open_directory

_PREFIX = "of-"
_OTHERS_WRITE = 0o022
#: Most links in one path, as in the kernel.
_MAX_LINKS = 40


class UnsafeCache(PermissionError):
    """Other users could exchange the data in the cache, or have done so. The message is for the user."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(errno.EPERM, text, path)


class UserDirectory:
    """The directory `of-UID` below `root`, which is created if necessary, with the directories `names`.

    `warnings` are about the places that a group of users can write to.
    """

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        """Raises UnsafeCache if other users could write to it, or exchange it; OSError."""
        self._descriptor = -1
        check_links(root)
        os.makedirs(root, mode=0o755, exist_ok=True)
        self.warnings = check_writers(root)
        self.path = os.path.join(root, "%s%d" % (_PREFIX, os.geteuid()))
        parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Users who can read the cache directory can read its entries.
            self.mode = stat.S_IMODE(os.fstat(parent).st_mode) & 0o755 | 0o700
            self._descriptor = _make_directory(os.path.basename(self.path), parent, self.mode, self.path)
        finally:
            os.close(parent)
        for name in names:
            os.close(_make_directory(name, self._descriptor, self.mode, os.path.join(self.path, name)))

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open(self, *names: str) -> ContextManager[int]:
        """Open a directory below this one for a `with` block; no name may be a link. Raises OSError."""
        return directory_below(self._descriptor, "/".join(names))

    def rename(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Rename `FOLDER/NAME` below this directory, wherever its path leads. Raises OSError."""
        with self.open(source[0]) as old, self.open(target[0]) as new:
            os.rename(source[1], target[1], src_dir_fd=old, dst_dir_fd=new)

    def verify(self) -> None:
        """Raise UnsafeCache if the path does not lead to the directory that was opened."""
        opened = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            named = None
        if named is None or not os.path.samestat(opened, named):
            raise UnsafeCache(
                "it was replaced while it was in use: another user or program can rename it; use a cache "
                "directory in which only you can",
                self.path,
            )
        _check_owner(opened, self.path)


def names_of_users(root: str) -> list[str]:
    """Return the names of all users' directories in a cache."""
    return sorted(name for name in os.listdir(root) if name.startswith(_PREFIX))


def check_links(path: str) -> None:
    """Raise UnsafeCache if the path leads through a link that another user could have planted.

    Links of this user and of root are followed, and so are all others where only their owner could make them.
    """
    for directory, name, status in _components(path):
        if not stat.S_ISLNK(status.st_mode) or status.st_uid in (os.geteuid(), 0):
            continue
        if os.stat(directory).st_mode & _OTHERS_WRITE:
            raise UnsafeCache(
                "it is a link that another user (%d) has made; use another cache directory" % status.st_uid,
                os.path.join(directory, name),
            )


def check_writers(root: str) -> list[str]:
    """Return warnings about the cache directory and those above it, if others could rename what is in them.

    Raises UnsafeCache if everybody could exchange the directories in `root`.
    """
    warnings = []
    place = os.path.realpath(root)
    status = os.stat(place)
    if _is_open_to_all(status):
        raise UnsafeCache(
            "all users can write to it and exchange the data of others: type `chmod +t %s`%s, or use another "
            "cache directory" % (place, "" if status.st_uid == os.geteuid() else " as its owner"),
            place,
        )
    if status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_ISVTX and not _is_own_group(status):
        warnings.append(
            "the cache directory %s can be written by its group: every member could exchange the data of "
            "the others; `chmod +t %s` prevents that" % (place, place)
        )
    while place != os.path.dirname(place):
        place = os.path.dirname(place)
        if _is_open_to_all(os.stat(place)):
            warnings.append(
                "%s, in which the cache directory is, can be written by all users: each of them could "
                "exchange the whole cache; `chmod +t %s` by its owner prevents that" % (place, place)
            )
    return warnings


def _is_open_to_all(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX


def _is_own_group(status: os.stat_result) -> bool:
    """Return True for a group that has this user's name: many systems give each user one."""
    import grp
    import pwd

    try:
        return grp.getgrgid(status.st_gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False  # a user or a group without a name


def _components(path: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield each existing component of a path, also of the links in it: directory, name and status."""
    place, rest, links = os.sep, os.path.abspath(path).split(os.sep)[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            place = os.path.dirname(place)
            continue
        try:
            status = os.lstat(os.path.join(place, name))
        except FileNotFoundError:
            return
        yield place, name, status
        if not stat.S_ISLNK(status.st_mode):
            place = os.path.join(place, name)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(os.path.join(place, name))
        if target.startswith(os.sep):
            place = os.sep
        rest += target.split(os.sep)[::-1]


def _make_directory(name: str, parent: int, mode: int, path: str) -> int:
    """Return a descriptor of a directory of this user, which is created if it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    try:
        descriptor = open_directory(name, parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise UnsafeCache("it is not a directory, but something else is in its place", path) from None
    try:
        _check_owner(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(status: os.stat_result, path: str) -> None:
    if status.st_uid != os.geteuid():
        raise UnsafeCache(
            "it belongs to another user (%d); remove it, or use another cache directory" % status.st_uid, path
        )
    if status.st_mode & _OTHERS_WRITE:
        raise UnsafeCache("other users can write to it: type `chmod go-w %s`" % path, path)
