"""Collection of outputs that the training wrote to its working directory, not to the output directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Callable, FrozenSet, Iterable, Iterator, Tuple

from outlast.node.files import copy_file, copy_tree
from outlast.node.outputs.output_tree import is_below
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_directory, walk

#: Path, inode, size and modification time of everything at a path; empty if nothing exists there.
_State = FrozenSet[Tuple[str, int, int, int]]
_NOTHING: _State = frozenset()


class OutputCollection:
    """Moves the named outputs from the working directory to the output directory.

    If a name exists in both, the output directory takes precedence, unless its content is unchanged from an
    earlier attempt and the training has written a new one to the working directory.
    """

    def __init__(self, names: Iterable[str], output: str, working: str) -> None:
        self._names = list(dict.fromkeys(os.path.normpath(name) for name in names if is_inside_name(name)))
        self._output = output
        self._working = working
        self._before: dict[str, tuple[_State, _State]] = {}

    def record_initial_state(self, pulse: Callable[[], None] = no_pulse) -> None:
        """Record, before the training starts, what was carried over or came with the code."""
        for name in self._names:
            goal, source = self._paths(name)
            self._before[name] = _state(goal, pulse), _state(source, pulse)

    def collect(self, pulse: Callable[[], None] = no_pulse) -> None:
        """Move the outputs, after the training, from the working directory to the output directory."""
        for number, name in enumerate(self._names):
            goal, source = self._paths(name)
            if not os.path.exists(source) or not is_below(source, os.path.realpath(self._working)):
                continue
            if os.path.lexists(goal):
                carried, supplied = self._before.get(name, (_NOTHING, _NOTHING))
                if _state(goal, pulse) != carried or _state(source, pulse) == supplied:
                    continue
                os.rename(goal, f"{self._output}.replaced-{number}")
            os.makedirs(os.path.dirname(goal), exist_ok=True)
            if os.path.islink(self._working):
                _copy(source, goal, pulse)  # the directory behind the link is not ours
                continue
            shutil.move(source, goal)
            # A check command may look for it where the training wrote it.
            with contextlib.suppress(OSError):
                os.symlink(goal, source)

    def _paths(self, name: str) -> tuple[str, str]:
        return os.path.join(self._output, name), os.path.realpath(os.path.join(self._working, name))


def is_inside_name(path: str) -> bool:
    """Return True if `path` is relative and does not lead out of its directory."""
    return bool(path) and not os.path.isabs(path) and os.pardir not in path.split("/") and "\0" not in path


def _copy(source: str, goal: str, pulse: Callable[[], None]) -> None:
    if os.path.isdir(source):
        copy_tree(source, goal, pulse)
    else:
        copy_file(source, goal, pulse)


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
