"""Outputs that a training wrote into its working directory count as well as those in the output directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Callable, FrozenSet, Iterable, Iterator, Tuple

from outlast.node.pulse import no_pulse

#: Name, inode, size and time of change of all that is at one place; empty where nothing is.
_State = FrozenSet[Tuple[str, int, int, int]]
_NOTHING: _State = frozenset()


class OutputCollection:
    """Of one name in both directories the output directory's counts.

    The exception is what was carried over from an earlier attempt and has not been touched since, where this
    attempt's training has written anew into its working directory: the old one would hide the new one.
    """

    def __init__(self, names: Iterable[str], output: str, working: str) -> None:
        self._names = list(dict.fromkeys(os.path.normpath(name) for name in names if is_inside_name(name)))
        self._output = output
        self._working = working
        self._before: dict[str, tuple[_State, _State]] = {}

    def look(self, pulse: Callable[[], None] = no_pulse) -> None:
        """Before the training starts: what is there now was carried over, or came with the code."""
        for name in self._names:
            goal, source = self._places(name)
            self._before[name] = _state(goal, pulse), _state(source, pulse)

    def bring_over(self, pulse: Callable[[], None] = no_pulse) -> None:
        """After the training: move its outputs from the working directory into the output directory."""
        for number, name in enumerate(self._names):
            goal, source = self._places(name)
            if not os.path.exists(source) or not is_below(source, os.path.realpath(self._working)):
                continue
            if os.path.lexists(goal):
                carried, given = self._before.get(name, (_NOTHING, _NOTHING))
                if _state(goal, pulse) != carried or _state(source, pulse) == given:
                    continue
                os.rename(goal, f"{self._output}.replaced-{number}")
            os.makedirs(os.path.dirname(goal), exist_ok=True)
            shutil.move(source, goal)
            # Only so that a check command finds it where the training wrote it.
            with contextlib.suppress(OSError):
                os.symlink(goal, source)

    def _places(self, name: str) -> tuple[str, str]:
        return os.path.join(self._output, name), os.path.realpath(os.path.join(self._working, name))


def is_inside_name(path: str) -> bool:
    return bool(path) and not os.path.isabs(path) and os.pardir not in path.split("/") and "\0" not in path


def is_below(path: str, top: str) -> bool:
    return path.startswith(os.path.join(top, ""))


def _state(path: str, pulse: Callable[[], None]) -> _State:
    found = set()
    for place in _all_at(path):
        pulse()
        with contextlib.suppress(OSError):  # it is not there, or was a temporary
            status = os.lstat(place)
            # A directory is as old as its content.
            mark = (0, 0) if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
            found.add((place, status.st_ino, *mark))
    return frozenset(found)


def _all_at(path: str) -> Iterator[str]:
    yield path
    if not os.path.islink(path):
        for place, names, files in os.walk(path):
            for name in (*names, *files):
                yield os.path.join(place, name)
