"""What a directory that goes from machine to machine holds: written last, so that it says the rest is there.

Files by relative name with their size, and links to something beside them, which no transfer keeps. Names
with a leading dot are in the making and do not count.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from typing import Iterator

NAME = "manifest.json"
_VERSION = 1
_LARGEST = 64 * 2**20
#: A directory that holds more than this is no set of checkpoints.
_MOST = 200_000


@dataclass(frozen=True)
class DirectoryManifest:
    #: Counts the states that a run's checkpoints were in; of two, the higher one is newer.
    serial: int
    files: dict[str, int] = field(default_factory=dict)
    #: Where links lead, relative to themselves.
    links: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        content = {"version": _VERSION, "serial": self.serial, "files": self.files, "links": self.links}
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def list_files(top: str, parts: list[str], serial: int) -> DirectoryManifest:
    """What is below these parts of `top` now. Raises OSError."""
    files: dict[str, int] = {}
    links: dict[str, str] = {}
    for part in parts:
        for name in _walk(top, part):
            path = os.path.join(top, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                files[name] = status.st_size
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(path)
                if _stays_inside(name, target, part):
                    links[name] = target
            if len(files) > _MOST:
                raise OSError(f"there are more than {_MOST} files in {os.path.join(top, part)}")
    return DirectoryManifest(serial, files, links)


def _walk(top: str, part: str) -> Iterator[str]:
    for directory, names, files in os.walk(os.path.join(top, part)):
        names[:] = [name for name in sorted(names) if not name.startswith(".")]
        linked = [name for name in names if os.path.islink(os.path.join(directory, name))]
        for name in [*linked, *sorted(files)]:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(directory, name), top)


def write(directory: str, manifest: DirectoryManifest) -> None:
    temporary = os.path.join(directory, f".{NAME}.tmp")
    with open(temporary, "wb") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(directory, NAME))


def read(directory: str) -> DirectoryManifest | None:
    """None where there is none, or none that can be believed: it may come from a foreign machine."""
    try:
        descriptor = os.open(os.path.join(directory, NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            raw = json.loads(file.read(_LARGEST))
        files, links = raw["files"], raw["links"]
        plain = all(isinstance(size, int) and _is_plain(name) for name, size in files.items())
        inside = all(_stays_inside(name, target, name.split("/")[0]) for name, target in links.items())
        if raw["version"] != _VERSION or not isinstance(raw["serial"], int) or not plain or not inside:
            return None
        return DirectoryManifest(raw["serial"], files, links)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def is_whole(directory: str, manifest: DirectoryManifest) -> bool:
    """Every file is there, is a file with its size, and is reached without following a link."""
    top = os.path.realpath(directory)
    places = {os.path.dirname(name) for name in manifest.files}
    if any(
        os.path.realpath(os.path.join(directory, place)) != os.path.join(top, place).rstrip("/")
        for place in places
    ):
        return False
    for name, size in manifest.files.items():
        try:
            status = os.lstat(os.path.join(directory, name))
        except (OSError, ValueError):
            return False
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
    return True


def _is_plain(name: object) -> bool:
    """A relative name that leads nowhere else and hides nothing."""
    return isinstance(name, str) and all(part and not part.startswith(".") for part in name.split("/"))


def _stays_inside(name: object, target: object, part: str) -> bool:
    if (
        not isinstance(name, str)
        or not isinstance(target, str)
        or not _is_plain(name)
        or os.path.isabs(target)
    ):
        return False
    goal = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return goal.startswith(part + os.sep)
