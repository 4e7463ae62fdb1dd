"""The file `entry.json` of a cache entry, and the sizes of files and trees on disk.

format   2; an entry without it is of format 1, which Outlast 0.2 wrote
size     bytes that were fetched
source   the name of the source that delivered most of them
stamp    format 1: size and modification time of a file, empty for a tree
state    since format 2: the state in which the content was stored, see `content_state`
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass
from typing import Any, Callable

from outlast.node.pulse import no_pulse
from outlast.node.staging.cache import content_state
from outlast.node.staging.cache.content_state import ContentState
from outlast.untrusted_files import open_directory, parse_json, read_file

CONTENT = "content"
#: The newest format that this version reads, and the one that it writes.
FORMAT = 2
_NAME = "entry.json"
_MAX_BYTES = 65536
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class EntryRecord:
    """The content of `entry.json`. `format` is 0 if it cannot be read."""

    format: int
    size: int = 0
    source: str = ""
    stamp: tuple[int, ...] = ()
    state: ContentState | None = None

    @property
    def is_newer(self) -> bool:
        """True if a newer version of Outlast wrote it, so that its content cannot be judged."""
        return self.format > FORMAT


def write_entry(place: str, size: int, source: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Make the content read-only and write `entry.json`, durably.

    This is the last step of a fill: `content` must be complete and durable.
    """
    directory = open_directory(place)
    try:
        state = content_state.seal(directory, CONTENT, pulse)
        status = os.stat(CONTENT, dir_fd=directory, follow_symlinks=False)
        raw = {
            "format": FORMAT,
            "size": size,
            "source": source,
            "stamp": [] if stat.S_ISDIR(status.st_mode) else _stamp(status),
            "state": state.to_dict(),
        }
        with open(os.open(_NAME, _NEW_FILE, 0o644, dir_fd=directory), "w", encoding="utf-8") as file:
            json.dump(raw, file)
            file.flush()
            os.fsync(file.fileno())
    finally:
        os.close(directory)


def read_entry(directory: int) -> EntryRecord:
    """Return the record of an entry whose directory is open."""
    raw = read_json(_NAME, directory)
    number = raw.get("format", 1 if raw else 0)
    size, source, stamp, state = (raw.get(key) for key in ("size", "source", "stamp", "state"))
    return EntryRecord(
        number if isinstance(number, int) and number > 0 else 0,
        size if isinstance(size, int) else 0,
        str(source or ""),
        tuple(stamp) if isinstance(stamp, list) else (),
        ContentState.from_dict(state) if isinstance(state, dict) else None,
    )


def find_alteration(directory: int, pulse: Callable[[], None] = no_pulse) -> str | None:
    """Return None if the content of an entry is as it was stored, else the path below the entry that is not.

    Everything must belong to this user or to root.
    """
    record = read_entry(directory)
    if not record.format or (record.format >= 2 and record.state is None):
        return _NAME
    try:
        if record.state is not None:
            altered = content_state.compare(directory, CONTENT, record.state, pulse)
        else:
            altered = _compare_format_1(directory, record, pulse)
    except FileNotFoundError:
        altered = ""
    return None if altered is None else os.path.join(CONTENT, altered).rstrip("/")


def _compare_format_1(directory: int, record: EntryRecord, pulse: Callable[[], None]) -> str | None:
    """Compare content of which only the size and time of a file were recorded, and nothing for a tree.

    `entry.json` was written last, so everything that was changed later than that was altered.
    """
    status = os.stat(CONTENT, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) and tuple(_stamp(status)) != record.stamp:
        return ""
    written = os.stat(_NAME, dir_fd=directory, follow_symlinks=False).st_ctime_ns
    return content_state.altered_since(directory, CONTENT, written, pulse)


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns]


def read_json(path: str, dir_fd: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none or it cannot be read."""
    try:
        raw = parse_json(read_file(path, _MAX_BYTES, dir_fd))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def total_size(top: str, pulse: Callable[[], None] = no_pulse) -> int:
    """Return the bytes of a file, or of all files in a tree. Files of a tree may vanish meanwhile."""
    if not os.path.isdir(top):
        return os.lstat(top).st_size
    total = 0
    for directory, _, names in os.walk(top):
        for name in names:
            pulse()
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(directory, name)).st_size
    return total


def free_space(path: str) -> int:
    """Return the bytes that this user can still write on the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
