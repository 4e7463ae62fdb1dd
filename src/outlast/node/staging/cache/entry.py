"""The file `entry.json` of a cache entry, and the sizes of files and trees on disk."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Callable

from outlast.node import files
from outlast.node.pulse import no_pulse

CONTENT = "content"
_NAME = "entry.json"
_MAX_BYTES = 65536


def write_entry(place: str, size: int, source: str) -> None:
    """Write `entry.json` durably. This is the last step of a fill: `content` must be complete and durable."""
    status = os.lstat(os.path.join(place, CONTENT))
    stamp = [] if stat.S_ISDIR(status.st_mode) else _stamp(status)
    with open(os.path.join(place, _NAME), "w", encoding="utf-8") as file:
        json.dump({"size": size, "source": source, "stamp": stamp}, file)
        file.flush()
        os.fsync(file.fileno())


def read_entry(place: str) -> tuple[int, str]:
    """Return the size of an entry and the name of its source; 0 and "" if `entry.json` cannot be read."""
    raw = read_json(os.path.join(place, _NAME))
    size = raw.get("size")
    return size if isinstance(size, int) else 0, str(raw.get("source", ""))


def is_intact(place: str) -> bool:
    """Return True if the content exists and, if it is a file, has not been modified since it was stored.

    Trees are not compared: they are too large.
    """
    try:
        status = os.lstat(os.path.join(place, CONTENT))
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) or _stamp(status) == read_json(os.path.join(place, _NAME)).get(
        "stamp"
    )


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns]


def read_json(path: str) -> dict[str, object]:
    """Return the JSON object in a file; empty if there is none or it cannot be read."""
    try:
        with files.open_file(path) as file:
            raw = json.loads(file.read(_MAX_BYTES))
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
