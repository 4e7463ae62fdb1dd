"""Read, copy, link and remove files and trees that may be large; skip what is no file, directory or link.

`pulse` is called for every block and every file. It may raise; the work then stops where it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, Callable, Iterator

from outlast.node.pulse import no_pulse
from outlast.untrusted_files import (
    DEEPEST,
    Entry,
    created_below,
    make_accessible,
    open_directory,
    open_file,
    remove_tree,
    walk,
)

_BLOCK_BYTES = 1 << 20
#: The most bytes of a path below a directory: with the path of that and the name of a file it can be opened.
_LONGEST_PATH = 1500
#: The most levels below a directory that may itself be some levels below one that is walked.
_MOST_LEVELS = DEEPEST - 20
#: The beginning of the names that `lift_deep` gives.
LIFTED = "too-deep-"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of a file system that cannot make this hard link; a copy may still work.
_NO_LINK = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS)


def read_blocks(file: IO[bytes], pulse: Callable[[], None] = no_pulse) -> Iterator[bytes]:
    """Yield the rest of `file` in blocks; call the pulse before each read, so also for an empty file."""
    while True:
        pulse()
        block = file.read(_BLOCK_BYTES)
        if not block:
            return
        yield block


def copy_file(
    source: str,
    target: str,
    pulse: Callable[[], None] = no_pulse,
    dir_fd: int | None = None,
    target_fd: int | None = None,
) -> None:
    """Copy a regular file with its mode and times; the paths are relative to the descriptors, if given.

    A file or link at `target` is replaced. If the copy fails, remove what is there of it.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target, dir_fd=target_fd)
    with open_file(source, dir_fd) as original:
        status = os.fstat(original.fileno())
        with open(os.open(target, _NEW_FILE, 0o600, dir_fd=target_fd), "wb") as copy:
            try:
                for block in read_blocks(original, pulse):
                    copy.write(block)
                copy.flush()
                os.chmod(copy.fileno(), stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
                os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            except BaseException:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    os.unlink(target, dir_fd=target_fd)
                raise


def link_or_copy(
    source: str,
    target: str,
    dir_fd: int | None = None,
    pulse: Callable[[], None] = no_pulse,
    target_fd: int | None = None,
) -> None:
    """Give a regular file a second name, or copy it if the file system cannot link it. Raises OSError.

    The paths are relative to the descriptors, if given.
    """
    try:
        os.link(source, target, src_dir_fd=dir_fd, dst_dir_fd=target_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy_file(source, target, pulse, dir_fd, target_fd)


def copy_tree(
    source: str,
    target: str,
    pulse: Callable[[], None] = no_pulse,
    dir_fd: int | None = None,
    target_fd: int | None = None,
) -> None:
    """Copy files, directories and symbolic links, and nothing else; `source` must not be a link itself.

    A file that vanishes meanwhile is skipped: it was a temporary file of a process that is still alive.
    Nothing is written through a link. The paths are relative to the descriptors, if given.
    """
    with _two_trees(source, target, dir_fd, target_fd) as (top, goal):
        for entry in walk(top, pulse):
            with contextlib.suppress(FileNotFoundError), _place_for(entry, goal) as place:
                if entry.is_file:
                    copy_file(entry.name, entry.name, pulse, entry.dir_fd, place)
                elif entry.is_link:
                    os.symlink(os.readlink(entry.name, dir_fd=entry.dir_fd), entry.name, dir_fd=place)


def link_tree(
    source: str,
    target: str,
    pulse: Callable[[], None] = no_pulse,
    dir_fd: int | None = None,
    target_fd: int | None = None,
) -> None:
    """Give all files of a directory a second name below `target`, or copy them; copy symbolic links.

    Files and directories that the owner cannot read are made accessible first. Nothing is written through a
    link. The paths are relative to the descriptors, if given. Raises OSError.
    """
    make_tree_accessible(source, pulse, dir_fd=dir_fd)
    with _two_trees(source, target, dir_fd, target_fd) as (top, goal):
        for entry in walk(top, pulse):
            with _place_for(entry, goal) as place:
                if entry.is_file:
                    link_or_copy(entry.name, entry.name, entry.dir_fd, pulse, place)
                elif entry.is_link:
                    os.symlink(os.readlink(entry.name, dir_fd=entry.dir_fd), entry.name, dir_fd=place)


@contextlib.contextmanager
def _two_trees(
    source: str, target: str, dir_fd: int | None, target_fd: int | None
) -> Iterator[tuple[int, int]]:
    """Yield descriptors of the directory `source` and of `target`, which is created if it is missing."""
    top = open_directory(source, dir_fd)
    try:
        if target_fd is None:
            os.makedirs(os.path.dirname(target) or os.curdir, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(target, dir_fd=target_fd)
        goal = open_directory(target, target_fd)
        try:
            yield top, goal
        finally:
            os.close(goal)
    finally:
        os.close(top)


def _place_for(entry: Entry, goal: int) -> contextlib.AbstractContextManager[int]:
    """Return a context with a descriptor of the directory below `goal` for an entry of the other tree.

    For a directory that is the copy of the directory itself.
    """
    return created_below(goal, entry.path if entry.is_directory else os.path.dirname(entry.path))


def copy_link_target(path: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Replace a link to a directory by a copy of that directory, which stays as it is. Raises OSError."""
    if not os.path.islink(path) or not os.path.isdir(path):
        return
    copy = f"{path}.copy"
    with contextlib.suppress(FileNotFoundError):
        remove_tree(copy)
    copy_tree(os.path.realpath(path), copy, pulse)
    os.unlink(path)
    os.rename(copy, path)


def make_tree_accessible(
    directory: str,
    pulse: Callable[[], None] = no_pulse,
    *,
    sandboxed: bool = False,
    dir_fd: int | None = None,
) -> int:
    """Let the owner read everything in a directory and remove it; return how many modes were changed.

    A training may leave files and directories without any permissions. A file with a second name is left as
    it is. In a sandbox, which has all names of its files, these are made writable too. Links are not
    followed. Raises OSError.
    """
    of_file = stat.S_IRUSR | stat.S_IWUSR if sandboxed else stat.S_IRUSR
    changed = int(make_accessible(directory, stat.S_IRWXU, dir_fd))
    top = open_directory(directory, dir_fd)
    try:
        for entry in walk(top, pulse, skip_deeper=True):
            bits = stat.S_IRWXU if entry.is_directory else of_file
            is_ours = entry.is_directory or (entry.is_file and (sandboxed or entry.status.st_nlink == 1))
            if is_ours and entry.status.st_mode & bits != bits:
                changed += make_accessible(entry.name, bits, entry.dir_fd)
    finally:
        os.close(top)
    return changed


def lift_deep(directory: str, pulse: Callable[[], None] = no_pulse) -> list[str]:
    """Move directories that are nested too deeply, or have too long a path, up to the top of `directory`.

    Afterwards `walk` finds everything in it. Return a sentence about the directories that were moved, if any.
    Links are not followed. Raises OSError.
    """
    make_tree_accessible(directory, pulse)
    top = open_directory(directory)
    try:
        lifted: list[tuple[str, str]] = []
        places = [""]
        while places:
            place = places.pop()
            found = _lift_below(top, place, len(lifted), pulse)
            lifted += found
            places += [name for _, name in found]
    finally:
        os.close(top)
    if not lifted:
        return []
    first, name = lifted[0]
    return [
        f"directories were nested too deeply: {first[:100]}… is now {name}"
        + (f", and {len(lifted) - 1} more ({LIFTED}…)" if len(lifted) > 1 else "")
    ]


def _lift_below(top: int, place: str, number: int, pulse: Callable[[], None]) -> list[tuple[str, str]]:
    """Move directories deep below `place` up to `top`; return the old path and the new name of each."""
    lifted: list[tuple[str, str]] = []
    descriptor = open_directory(place, top) if place else os.dup(top)
    prefix = f"{place}/" if place else ""
    try:
        for entry in walk(descriptor, pulse, skip_deeper=True):
            if not entry.is_directory:
                continue
            make_accessible(entry.name, stat.S_IRWXU, entry.dir_fd)
            path = prefix + entry.path
            if path.count("/") < _MOST_LEVELS and len(os.fsencode(path)) <= _LONGEST_PATH:
                continue
            name = _free_name(top, number + len(lifted) + 1)
            os.rename(entry.name, name, src_dir_fd=entry.dir_fd, dst_dir_fd=top)
            lifted.append((path, name))
    finally:
        os.close(descriptor)
    if place:
        make_tree_accessible(f"/proc/self/fd/{top}/{place}", pulse)
    return lifted


def _free_name(top: int, number: int) -> str:
    while True:
        name = f"{LIFTED}{number}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
        number += 1


def sync_directory(directory: str | os.PathLike[str], dir_fd: int | None = None) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; the files themselves are durable.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
