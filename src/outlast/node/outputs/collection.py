"""Collection of what the training wrote to its working directory, not to the output directory."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Callable, FrozenSet, Iterable, Iterator, Tuple

from outlast.node.files import copy_file, copy_tree, link_or_copy, link_tree, make_tree_accessible
from outlast.node.outputs.made_files import CodeListing, find_made, inner_link
from outlast.node.outputs.output_tree import is_below
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import (
    Entry,
    created_below,
    directory_below,
    make_accessible,
    open_directory,
    walk,
)

#: Path, inode, size and modification time of everything at a path; empty if nothing exists there.
_State = FrozenSet[Tuple[str, int, int, int]]
_NOTHING: _State = frozenset()
#: A directory, and the path of something below it.
_Place = Tuple[str, str]
#: The ending of a file from the working directory, if the output directory has another one of its name.
_SECOND = ".working"


@dataclass(frozen=True)
class LeftFile:
    """A file that no rule names and that is too large to be collected with the others."""

    path: str
    size: int


class OutputCollection:
    """Gives the outputs in the working directory a second name in the output directory.

    These are the named outputs, and all other files that the training made, the smallest first, of `limit`
    bytes together. If a name exists in both, the output directory takes precedence, unless its content is
    unchanged from an earlier attempt and the training has written a new one to the working directory.
    """

    def __init__(
        self, names: Iterable[str], output: str, working: str, limit: int = 0, code: CodeListing | None = None
    ) -> None:
        self._names = list(dict.fromkeys(os.path.normpath(name) for name in names if is_inside_name(name)))
        self._output = output
        self._working = working
        self._limit = limit
        #: Without it, only the named outputs are collected.
        self._code = code
        self._before: dict[str, tuple[_State, _State]] = {}
        #: Everything in the output and in the working directory when the training started.
        self._initial: tuple[_State, _State] = _NOTHING, _NOTHING

    def record_initial_state(
        self, code: CodeListing | None = None, pulse: Callable[[], None] = no_pulse
    ) -> None:
        """Record, before the training starts, what was carried over and what came with the code."""
        self._code = code
        for name in self._names:
            goal, source = self._paths(name)
            self._before[name] = _state(goal, pulse), _state(source, pulse)
        self._initial = _state(self._output, pulse), _state(self._working, pulse)

    def collect(self, pulse: Callable[[], None] = no_pulse) -> list[LeftFile]:
        """Bring the outputs, after the training, to the output directory; return files that are too large."""
        collected = [
            name for number, name in enumerate(self._names) if self._collect_named(number, name, pulse)
        ]
        if self._code is None or os.path.islink(self._working):
            return []
        return self._collect_others(self._code, collected, pulse)

    def _collect_named(self, number: int, name: str, pulse: Callable[[], None]) -> bool:
        goal, source = self._paths(name)
        working = os.path.realpath(self._working)
        if not os.path.exists(source) or not is_below(source, working):
            return False
        if os.path.lexists(goal):
            if _is_same(goal, source):
                return True
            carried, supplied = self._before.get(name, (_NOTHING, _NOTHING))
            if _state(goal, pulse) != carried or _state(source, pulse) == supplied:
                return False
            with directory_below(self._output, os.path.dirname(name)) as place:
                os.rename(os.path.basename(name), f"{self._output}.replaced-{number}", src_dir_fd=place)
        # The directory behind a link is not ours: it is copied.
        bring = _copy if os.path.islink(self._working) else _link
        bring((working, os.path.relpath(source, working)), (self._output, name), pulse)
        return True

    def _collect_others(
        self, code: CodeListing, collected: Iterable[str], pulse: Callable[[], None]
    ) -> list[LeftFile]:
        make_tree_accessible(self._working, pulse)
        done = tuple(os.path.join(name, "") for name in collected)
        links: list[tuple[str, str]] = []
        files: list[LeftFile] = []
        for entry in find_made(self._working, code, pulse):
            if os.path.join(entry.path, "").startswith(done):
                continue
            if entry.is_link and self._leads_inside(entry):
                links.append((entry.path, inner_link(entry, self._working)))
            elif entry.is_file:
                files.append(LeftFile(entry.path, entry.status.st_size))
        left, total = [], 0
        for file in sorted(files, key=lambda one: (one.size, one.path)):
            pulse()
            total += file.size
            if total > self._limit or not self._collect_other(file.path, pulse):
                left.append(file)
        for path, target in links:
            folder, name = os.path.split(path)
            # An error: the file that it leads to is there under its own name.
            with contextlib.suppress(OSError), created_below(self._output, folder) as place:
                os.symlink(target, name, dir_fd=place)
        return left

    def _leads_inside(self, entry: Entry) -> bool:
        goal = os.path.realpath(os.path.join(self._working, entry.path))
        return is_below(goal, os.path.realpath(self._working)) and os.path.isfile(goal)

    def _collect_other(self, path: str, pulse: Callable[[], None]) -> bool:
        """Give a file a name in the output directory; return False if that is not possible."""
        goal, source = os.path.join(self._output, path), os.path.join(self._working, path)
        if os.path.lexists(goal):
            unchanged = _state(source, pulse) <= self._initial[1]
            if _is_same(goal, source) or (unchanged and _is_copy(goal, source)):
                return True  # an earlier attempt collected it, and was interrupted
            if unchanged or os.path.isdir(goal) or not _state(goal, pulse) <= self._initial[0]:
                goal += _SECOND
            with contextlib.suppress(FileNotFoundError):
                os.unlink(goal)
        try:
            _link((self._working, path), (self._output, os.path.relpath(goal, self._output)), pulse)
        except (FileExistsError, NotADirectoryError):
            return False  # a file of the output directory has the name of its directory
        return True

    def _paths(self, name: str) -> tuple[str, str]:
        return os.path.join(self._output, name), os.path.realpath(os.path.join(self._working, name))


def is_inside_name(path: str) -> bool:
    """Return True if `path` is relative and does not lead out of its directory."""
    return bool(path) and not os.path.isabs(path) and os.pardir not in path.split("/") and "\0" not in path


def _link(source: _Place, goal: _Place, pulse: Callable[[], None]) -> None:
    """Give a file, or all files of a directory, a second name, or copy it."""
    with _open_both(source, goal) as (name, folder, new_name, place):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            link_tree(name, new_name, pulse, folder, place)
            return
        if status.st_nlink == 1:  # else other names of it may not be ours
            make_accessible(name, stat.S_IRUSR, folder)  # the training may have left it without permissions
        link_or_copy(name, new_name, folder, pulse, place)


def _copy(source: _Place, goal: _Place, pulse: Callable[[], None]) -> None:
    with _open_both(source, goal) as (name, folder, new_name, place):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            copy_tree(name, new_name, pulse, folder, place)
        else:
            copy_file(name, new_name, pulse, folder, place)


@contextlib.contextmanager
def _open_both(source: _Place, goal: _Place) -> Iterator[tuple[str, int, str, int]]:
    """Yield name and open directory of the source, and of the goal, whose directory is created."""
    (top, path), (new_top, new_path) = source, goal
    folder, new_folder = os.path.dirname(path), os.path.dirname(new_path)
    with directory_below(top, folder) as origin, created_below(new_top, new_folder) as place:
        yield os.path.basename(path), origin, os.path.basename(new_path), place


def _is_same(goal: str, source: str) -> bool:
    """Return True if both are names of one file that is no link."""
    one, other = os.lstat(goal), os.lstat(source)
    return stat.S_ISREG(one.st_mode) and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _is_copy(goal: str, source: str) -> bool:
    """Return True if both are files of the same size and time; an archive has whole seconds only."""
    one, other = os.lstat(goal), os.lstat(source)
    return stat.S_ISREG(one.st_mode) and (one.st_size, int(one.st_mtime)) == (
        other.st_size,
        int(other.st_mtime),
    )


def _state(path: str, pulse: Callable[[], None]) -> _State:
    found = set()
    for place in _walk(path):
        pulse()
        with contextlib.suppress(OSError):  # it does not exist, or was a temporary file
            status = os.lstat(place)
            # The content of a directory is listed separately.
            stamp = (0, 0) if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
            found.add((place, status.st_ino, *stamp))
    return frozenset(found)


def _walk(path: str) -> Iterator[str]:
    yield path
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it is a file, a link or missing
        top = open_directory(path)
        try:
            for entry in walk(top):
                yield os.path.join(path, entry.path)
        finally:
            os.close(top)
