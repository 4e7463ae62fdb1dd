"""What is told of an entry of the store, in its `entry.json`, and sizes of what lies on a disk."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Callable

from outlast.node import files
from outlast.node.pulse import silent

CONTENT = "content"
_NAME = "entry.json"
_LARGEST = 65536


def write_entry(place: str, size: int, source: str) -> None:
    """The last thing a fill does: `content` is whole and durable."""
    status = os.lstat(os.path.join(place, CONTENT))
    stamp = [] if stat.S_ISDIR(status.st_mode) else _stamp(status)
    with open(os.path.join(place, _NAME), "w", encoding="utf-8") as file:
        json.dump({"size": size, "source": source, "stamp": stamp}, file)
        file.flush()
        os.fsync(file.fileno())


def read_entry(place: str) -> tuple[int, str]:
    """Its size, and where it came from."""
    raw = read_json(os.path.join(place, _NAME))
    size = raw.get("size")
    return size if isinstance(size, int) else 0, str(raw.get("source", ""))


def is_whole(place: str) -> bool:
    """A file that has been changed since it came is not what its key says; trees are too large to ask."""
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
    """Empty where there is none that can be read."""
    try:
        with files.open_file(path) as file:
            raw = json.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def size_of(top: str, pulse: Callable[[], None] = silent) -> int:
    """Of a file, or of all files of a tree together. Files may vanish meanwhile."""
    if not os.path.isdir(top):
        return os.lstat(top).st_size
    total = 0
    for place, _, names in os.walk(top):
        for name in names:
            pulse()
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def free_space(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
