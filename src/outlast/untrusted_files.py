"""Access to files that a training, a compute node, a site or another user could have changed.

The rule: such a path is opened relative to a directory descriptor, without following links, as a regular
file, within a size. Between two looks anything may have become anything: a directory a link to the user's
home, a log a pipe that never ends, a number one of a million digits. All readers of such files use this
module; `tests/unit/test_untrusted_files_rule.py` finds those that do not.

`top` is always a directory that Outlast made for itself: it is opened as it is, and only what is below it is
untrusted. Everything here raises OSError (with an errno), or ValueError where content is parsed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Iterator

_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: The most levels of directories below `top`; everything within them can be walked with one descriptor each.
DEEPEST = 200
#: How often something is removed anew that other processes change meanwhile, and the errors of that.
_MAX_TRIES = 1000
_REMOVED_MEANWHILE = (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR)
#: The longest number in JSON, in characters: a 64-bit integer and every float fit.
_LONGEST_NUMBER = 40


def _do_nothing() -> None:
    pass


def open_directory(path: str | os.PathLike[str], dir_fd: int | None = None) -> int:
    """Return a descriptor of a directory; a link to one is refused."""
    return os.open(path, _DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd)


@contextlib.contextmanager
def directory_below(top: str | os.PathLike[str] | int, relative: str = "") -> Iterator[int]:
    """Yield a descriptor of the directory `relative` below `top`; no component of it may be a link.

    `top` is a path, or the descriptor of a directory, which stays open.
    """
    descriptor = os.dup(top) if isinstance(top, int) else os.open(top, _DIRECTORY)
    try:
        for name in _components(relative):
            inner = open_directory(name, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def created_below(top: str | os.PathLike[str] | int, relative: str = "") -> Iterator[int]:
    """Yield a descriptor of the directory `relative` below `top`, which is created where it is missing.

    As with `directory_below`, no component of it may be a link: nothing is created through one.
    """
    with directory_below(top) as start:
        descriptor = os.dup(start)
    try:
        for name in _components(relative):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=descriptor)
            inner = open_directory(name, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: str | os.PathLike[str], dir_fd: int | None = None) -> BinaryIO:
    """Open a regular file for reading; refuse a link, and anything that a read could wait for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _NO_FOLLOW, dir_fd=dir_fd)
    try:
        _require_regular(descriptor, path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_to_append(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of a regular file to append to, which is created if it is missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags | _NO_FOLLOW, 0o644)
    try:
        _require_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_file(path: str | os.PathLike[str], dir_fd: int | None = None) -> BinaryIO:
    """Create a file for writing; replace a file, link or pipe of that name, which is never written to."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path, dir_fd=dir_fd)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o644, dir_fd=dir_fd), "wb")


@contextlib.contextmanager
def open_below(top: str | os.PathLike[str], relative: str) -> Iterator[BinaryIO]:
    """Open the regular file `relative` below `top` for reading; no component of it may be a link."""
    folder, name = _split(relative)
    with directory_below(top, folder) as parent, open_file(name, parent) as file:
        yield file


def read_file(path: str | os.PathLike[str], most: int, dir_fd: int | None = None) -> bytes:
    """Return the content of a regular file; raise OSError (EFBIG) if it has more than `most` bytes."""
    with open_file(path, dir_fd) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, "it has more than %d bytes" % most, os.fspath(path))
    return content


def read_below(top: str | os.PathLike[str], relative: str, most: int) -> bytes:
    """Return the content of the regular file `relative` below `top`, of at most `most` bytes."""
    folder, name = _split(relative)
    with directory_below(top, folder) as parent:
        return read_file(name, most, parent)


def parse_json(content: bytes | str, too_long: float | None = None) -> Any:
    """Return what the JSON text holds. Raise ValueError for anything that cannot be used safely.

    Numbers that no clock, counter or measurement has, and nesting deeper than the interpreter can follow, are
    errors like any other: neither OverflowError nor RecursionError leaves this function. If `too_long` is
    given, it takes the place of such a number.
    """

    def parse_int(text: str) -> int | float:
        if len(text) <= _LONGEST_NUMBER:
            return int(text)
        if too_long is None:
            raise ValueError("a number of %d digits" % len(text))
        return too_long

    def parse_float(text: str) -> float:
        if len(text) <= 10 * _LONGEST_NUMBER:
            return float(text)
        if too_long is None:
            raise ValueError("a number of %d characters" % len(text))
        return too_long

    try:
        return json.loads(content, parse_int=parse_int, parse_float=parse_float)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@dataclass(frozen=True)
class Entry:
    """A name found by `walk`: where it is (a descriptor, valid until the next entry) and what it is."""

    #: The path relative to the walked directory.
    path: str
    name: str
    dir_fd: int
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


def walk(
    descriptor: int, check: Callable[[], None] | None = None, *, skip_deeper: bool = False
) -> Iterator[Entry]:
    """Yield everything below an open directory, parents first and by name; links are yielded, not followed.

    What vanishes meanwhile is skipped. `check` is called before each entry and may raise. Raise OSError
    (ELOOP) where directories are nested deeper than `DEEPEST`; with `skip_deeper`, leave these out.
    """
    return _walk(descriptor, "", 0, check, skip_deeper)


def _walk(
    descriptor: int, prefix: str, depth: int, check: Callable[[], None] | None, skip_deeper: bool
) -> Iterator[Entry]:
    if depth > DEEPEST and skip_deeper:
        return
    if depth > DEEPEST:
        raise OSError(errno.ELOOP, "directories are nested deeper than %d levels" % DEEPEST, prefix)
    with os.scandir(descriptor) as found:
        names = sorted(entry.name for entry in found)
    for name in names:
        if check is not None:
            check()
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            continue
        entry = Entry(prefix + name, name, descriptor, status)
        yield entry
        if entry.is_directory:
            try:
                inner = open_directory(name, descriptor)
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed or replaced since
            try:
                yield from _walk(inner, prefix + name + "/", depth + 1, check, skip_deeper)
            finally:
                os.close(inner)


def remove(
    name: str | os.PathLike[str], dir_fd: int | None = None, check: Callable[[], None] = _do_nothing
) -> None:
    """Remove a file, a link or a directory with its content, however deep; no link is followed.

    A name that does not exist is no error, and other processes may remove the same at once. Raises OSError.
    """
    for _ in range(_MAX_TRIES):
        try:
            mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        try:
            if not stat.S_ISDIR(mode):
                os.unlink(name, dir_fd=dir_fd)
                return
            remove_tree(name, check, dir_fd=dir_fd)
            return
        except OSError as error:
            if error.errno not in _REMOVED_MEANWHILE:
                raise
    raise OSError(errno.ENOTEMPTY, "other processes write to it again and again", os.fspath(name))


def remove_tree(
    path: str | os.PathLike[str],
    check: Callable[[], None] = _do_nothing,
    *,
    ignore_errors: bool = False,
    dir_fd: int | None = None,
) -> None:
    """Remove a directory and everything in it, however deep it is nested. Raises OSError.

    Each subdirectory is moved up to the top before its parent is removed, so that nothing recurses. Links are
    removed and never followed. `check` is called for every name and may raise. With `ignore_errors`, what
    cannot be removed stays.
    """
    errors = contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext()
    stuck: set[str] = set()
    top = _open_accessible(path, dir_fd)
    try:
        while names := _empty(top, check, errors) - stuck:
            for name in names:
                stuck.add(name)
                with errors:
                    _lift_content(name, top, check, errors)
                    stuck.remove(name)
    finally:
        os.close(top)
    with errors:
        os.rmdir(path, dir_fd=dir_fd)


def _lift_content(
    name: str, top: int, check: Callable[[], None], errors: contextlib.AbstractContextManager[object]
) -> None:
    """Remove the directory `name` of the directory `top`; move the directories in it up to `top`."""
    inner = _open_accessible(name, top)
    try:
        for below in _empty(inner, check, errors):
            target = f".{os.urandom(8).hex()}.tmp"
            os.rename(below, target, src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _open_accessible(name: str | os.PathLike[str], parent: int | None) -> int:
    """Make a directory readable and writable, and return a descriptor of it."""
    make_accessible(name, stat.S_IRWXU, parent)
    return open_directory(name, parent)


def make_accessible(name: str | os.PathLike[str], bits: int, parent: int | None = None) -> bool:
    """Add `bits` to the mode of a file or directory; a link is never followed. Raises OSError.

    Return True if some of them were missing.
    """
    # By a descriptor of the thing itself: `name` may have become a link when its mode is changed.
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = os.fstat(descriptor).st_mode
        if mode & bits == bits or stat.S_ISLNK(mode):
            return False
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | bits)
        return True
    finally:
        os.close(descriptor)


def _empty(
    descriptor: int, check: Callable[[], None], errors: contextlib.AbstractContextManager[object]
) -> set[str]:
    """Remove everything but directories; return the names of those, with modes that allow to move them."""
    with os.scandir(descriptor) as entries:
        found = list(entries)
    names = set()
    for entry in found:
        check()
        if not entry.is_dir(follow_symlinks=False):
            with errors:
                os.unlink(entry.name, dir_fd=descriptor)
            continue
        with errors:
            make_accessible(entry.name, stat.S_IRWXU, descriptor)
        names.add(entry.name)
    return names


def is_plain_name(relative: str) -> bool:
    """Return True if `relative` is a path of plain names below its directory, in its shortest form."""
    return (
        bool(relative)
        and "\0" not in relative
        and all(part not in ("", os.curdir, os.pardir) for part in relative.split("/"))
    )


def _components(relative: str) -> list[str]:
    if not relative:
        return []
    if not is_plain_name(relative):
        raise OSError(errno.EINVAL, "it leads out of its directory", relative)
    return relative.split("/")


def _require_regular(descriptor: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _split(relative: str) -> tuple[str, str]:
    *folders, name = _components(relative) or [""]
    return "/".join(folders), name
