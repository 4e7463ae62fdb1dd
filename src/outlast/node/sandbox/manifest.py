"""The manifest of a directory that is transferred between machines. It is written last: if it is there, the
directory is complete.

It has the relative names of files with their sizes, and of symbolic links inside the directory, which no
transfer keeps. Names with a leading dot are temporary and not included.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Iterator

from outlast.untrusted_files import create_file, directory_below, open_file, parse_json, walk

NAME = "manifest.json"
_VERSION = 1
_MAX_BYTES = 64 * 2**20
#: A directory with more files than this is not a set of checkpoints.
_MAX_FILES = 200_000
#: The most bytes of a relative name, and of one part of it; the path of any directory fits before it.
_MAX_NAME = 2000
_MAX_PART = 255


@dataclass(frozen=True)
class DirectoryManifest:
    """A state of a run's checkpoints and unfinished outputs."""

    #: Increases with each state; of two states the one with the higher serial is newer.
    serial: int
    files: dict[str, int] = field(default_factory=dict)
    #: Targets of links, relative to the links.
    links: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        content = {"version": _VERSION, "serial": self.serial, "files": self.files, "links": self.links}
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def list_files(top: str, parts: list[str], serial: int) -> DirectoryManifest:
    """Return the manifest of the directories `parts` below `top`. Raises OSError."""
    files: dict[str, int] = {}
    links: dict[str, str] = {}
    for part in parts:
        for name in _walk(top, part):
            if not _is_plain(name):
                continue  # longer than any name that `read` accepts
            path = os.path.join(top, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                files[name] = status.st_size
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(path)
                if _stays_inside(name, target, part):
                    links[name] = target
            if len(files) > _MAX_FILES:
                raise OSError(f"more than {_MAX_FILES} files in {os.path.join(top, part)}")
    return DirectoryManifest(serial, files, links)


def _walk(top: str, part: str) -> Iterator[str]:
    """Yield the names of files and links, relative to `top`, except those with a leading dot."""
    with suppress(FileNotFoundError), directory_below(top, part) as descriptor:
        for entry in walk(descriptor):
            hidden = any(name.startswith(".") for name in entry.path.split("/"))
            if not entry.is_directory and not hidden:
                yield f"{part}/{entry.path}"


def write(directory: str, manifest: DirectoryManifest) -> None:
    """Write the manifest of a directory, durably and at once. Raises OSError."""
    temporary = os.path.join(directory, f".{NAME}.tmp")
    with create_file(temporary) as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(directory, NAME))


def read(directory: str) -> DirectoryManifest | None:
    """Return the manifest of a directory; None if it is missing or not valid.

    It may come from a machine that is not trusted, so all names are checked.
    """
    try:
        with open_file(os.path.join(directory, NAME)) as file:
            raw = parse_json(file.read(_MAX_BYTES))
        files, links = raw["files"], raw["links"]
        plain = all(isinstance(size, int) and _is_plain(name) for name, size in files.items())
        inside = all(_stays_inside(name, target, name.split("/")[0]) for name, target in links.items())
        if raw["version"] != _VERSION or not isinstance(raw["serial"], int) or not plain or not inside:
            return None
        if _has_collisions(files, links):
            return None
        return DirectoryManifest(raw["serial"], files, links)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def is_whole(directory: str, manifest: DirectoryManifest) -> bool:
    """Return True if every file exists with its size, as a regular file that no link leads to."""
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
    """Return True for a relative name that a file can have, without `..` or parts with a leading dot."""
    encoded = _encode(name)
    parts = encoded.split(b"/")
    return len(encoded) <= _MAX_NAME and all(
        part and not part.startswith(b".") and len(part) <= _MAX_PART for part in parts
    )


def _encode(name: object) -> bytes:
    """Return the bytes of a name in the file system; empty if no file can have it."""
    try:
        encoded = os.fsencode(name) if isinstance(name, str) else b""
    except UnicodeEncodeError:
        return b""
    return encoded if b"\0" not in encoded else b""


def _has_collisions(files: dict[str, int], links: dict[str, str]) -> bool:
    """Return True if one name is two of these: a file, a link, the directory of another name."""
    directories = set()
    for name in [*files, *links]:
        place = os.path.dirname(name)
        while place and place not in directories:
            directories.add(place)
            place = os.path.dirname(place)
    return any(name in directories or name in links for name in files) or any(
        name in directories for name in links
    )


def _stays_inside(name: object, target: object, part: str) -> bool:
    """Return True if the target of the link `name` is inside the directory `part`."""
    if (
        not isinstance(name, str)
        or not isinstance(target, str)
        or not _is_plain(name)
        or not _encode(target)
        or len(_encode(target)) > _MAX_NAME
        or os.path.isabs(target)
    ):
        return False
    climbs = [part == ".." for part in target.split("/")]
    if climbs != sorted(climbs, reverse=True):
        return False  # the directory before a later `..` may be a link to somewhere else
    goal = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return goal.startswith(part + os.sep)
