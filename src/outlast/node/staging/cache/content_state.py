"""The state of an entry's content: it is made read-only, its state is recorded, and compared before each use.

Modes do not stop root, so the comparison does not rely on them. It needs no reading: a file that was written
to has another size or modification time, and whatever was changed in any way after the state was recorded
has a later change time, which no program can set. A million files take about five seconds.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping

from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_directory, walk

_WRITABLE = 0o222
_TO_CHANGE_MODE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Files whose state is hashed at once.
_BATCH = 1000


@dataclass(frozen=True)
class ContentState:
    """The number of names, a digest of their paths, kinds, sizes and times, and the latest change time."""

    names: int
    digest: str
    #: The latest change time (ctime) of all files and directories, in nanoseconds.
    changed: int

    def to_dict(self) -> dict[str, Any]:
        return {"names": self.names, "digest": self.digest, "changed": self.changed}

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> ContentState | None:
        """Return the state that an entry records; None if it is not valid."""
        names, digest, changed = (raw.get(key) for key in ("names", "digest", "changed"))
        if isinstance(names, int) and isinstance(digest, str) and isinstance(changed, int):
            return ContentState(names, digest, changed)
        return None


def seal(parent: int, name: str, pulse: Callable[[], None] = no_pulse) -> ContentState:
    """Make the file or tree `name` read-only and return its state. Raises OSError."""
    summary = _Summary()
    for path, found, directory, base in _names(parent, name, pulse):
        mode = found.st_mode
        is_writable = mode & _WRITABLE and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        summary.add(path, _make_read_only(found, directory, base) if is_writable else found)
    return summary.result()


def compare(
    parent: int, name: str, recorded: ContentState, pulse: Callable[[], None] = no_pulse
) -> str | None:
    """Return None if the content is in the recorded state, else the path that was altered.

    The path is relative to the content, and empty if it is the content itself or not known.
    """
    summary = _Summary()
    try:
        for path, status, _, _ in _names(parent, name, pulse):
            if status.st_ctime_ns > recorded.changed or not _is_trusted(status.st_uid):
                return path
            summary.add(path, status)
    except FileNotFoundError:
        return ""
    found = summary.result()
    return None if (found.names, found.digest) == (recorded.names, recorded.digest) else ""


def altered_since(parent: int, name: str, changed: int, pulse: Callable[[], None] = no_pulse) -> str | None:
    """Return the path of something that was changed after this time, in nanoseconds; None if nothing was."""
    for path, status, _, _ in _names(parent, name, pulse):
        if status.st_ctime_ns > changed or not _is_trusted(status.st_uid):
            return path
    return None


def _is_trusted(owner: int) -> bool:
    return owner in (os.geteuid(), 0)


def _names(
    parent: int, name: str, pulse: Callable[[], None]
) -> Iterator[tuple[str, os.stat_result, int, str]]:
    """Yield the path, the status, a descriptor of the directory and the name there, of everything."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    yield "", status, parent, name
    if stat.S_ISDIR(status.st_mode):
        descriptor = open_directory(name, parent)
        try:
            for entry in walk(descriptor, pulse):
                yield entry.path, entry.status, entry.dir_fd, entry.name
        finally:
            os.close(descriptor)


def _make_read_only(status: os.stat_result, parent: int, name: str) -> os.stat_result:
    """Remove all write permissions, and return the new status. Only for files and directories."""
    descriptor = os.open(name, _TO_CHANGE_MODE, dir_fd=parent)
    try:
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_WRITABLE)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


class _Summary:
    """The state of the files that were added so far."""

    def __init__(self) -> None:
        self._names = 0
        self._changed = 0
        self._digest = hashlib.blake2b(digest_size=16)
        #: Lines that are not hashed yet; one by one would take twice the time.
        self._lines: list[str] = []

    def add(self, path: str, status: os.stat_result) -> None:
        mode, changed = status.st_mode, status.st_ctime_ns
        if stat.S_ISDIR(mode):
            # Sizes and times of directories differ between file systems; their change time is enough.
            self._lines.append("%s\0d" % path)
        else:
            line = "%s\0%d %d %d" % (path, stat.S_IFMT(mode), status.st_size, status.st_mtime_ns)
            self._lines.append(line)
        self._changed = max(self._changed, changed)
        if len(self._lines) >= _BATCH:
            self._hash()

    def result(self) -> ContentState:
        self._hash()
        return ContentState(self._names, self._digest.hexdigest(), self._changed)

    def _hash(self) -> None:
        self._names += len(self._lines)
        # No path has two NULs in a row, so that no two lists of lines are the same text.
        text = "".join("%s\0\0" % line for line in self._lines)
        self._digest.update(text.encode("utf-8", "surrogateescape"))
        self._lines.clear()
