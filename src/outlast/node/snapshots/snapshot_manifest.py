"""The manifest of a snapshot: sizes and digests of its files. It is written last."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import dataclass, field
from typing import Any, Tuple

from outlast.node.files import sync_directory
from outlast.untrusted_files import DEEPEST, create_file, is_plain_name, parse_json, read_file

NAME = "manifest.json"
#: The directory of the files, beside the manifest.
FILES = "files"
_VERSION = 1
#: More than the list of as many files as a snapshot may have.
MAX_BYTES = 8 * 2**20
_LONGEST_LINK = 4096

#: Inode, size and modification time: equal for a file that has not changed on this machine.
Stamp = Tuple[int, int, int]


@dataclass(frozen=True)
class KeptFile:
    """A file of a snapshot. `stamp` is that of the file that it was copied from."""

    size: int
    sha256: str
    stamp: Stamp


@dataclass(frozen=True)
class Snapshot:
    """A whole state of a checkpoint directory. Numbers increase."""

    number: int
    #: The training script continued after it (a quiet directory), or all of its files passed their checks.
    sure: bool = False
    files: dict[str, KeptFile] = field(default_factory=dict)
    #: Symbolic links and their targets.
    links: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "%06d" % self.number

    @property
    def size(self) -> int:
        return sum(kept.size for kept in self.files.values())

    def has_same_content(self, other: Snapshot) -> bool:
        mine = {name: kept.sha256 for name, kept in self.files.items()}
        return mine == {name: kept.sha256 for name, kept in other.files.items()} and self.links == other.links


def write(snapshot: Snapshot, directory: int) -> None:
    """Write the manifest into an open directory, durably. Raises OSError."""
    raw = {
        "version": _VERSION,
        "number": snapshot.number,
        "sure": snapshot.sure,
        "files": {name: [kept.size, kept.sha256, *kept.stamp] for name, kept in snapshot.files.items()},
        "links": snapshot.links,
    }
    content = json.dumps(raw, separators=(",", ":")).encode("ascii")
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, "the names of the files are too long")
    with create_file(NAME, directory) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(".", directory)


def read(directory: int) -> Snapshot | None:
    """Return the snapshot whose open directory this is; None if it has no valid manifest.

    It may come from a machine that is not trusted, so all names are checked.
    """
    try:
        raw: Any = parse_json(read_file(NAME, MAX_BYTES, directory))
        if raw["version"] != _VERSION:
            return None
        files = {_plain(name): _file(facts) for name, facts in raw["files"].items()}
        links = {_plain(name): _link(target) for name, target in raw["links"].items()}
        return Snapshot(_count(raw["number"]), bool(raw["sure"]), files, links)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None


def leads_outside(name: str, target: str) -> bool:
    """Return True if the link `name` may lead out of the directory of the files, by way of others too.

    Only leading `..` are allowed: behind another link, `..` is relative to where that one leads.
    """
    parts = target.split("/")
    ups = len(parts) - len(list(itertools.dropwhile(lambda part: part == os.pardir, parts)))
    return os.path.isabs(target) or ups > name.count("/") or os.pardir in parts[ups:]


def _plain(name: str) -> str:
    if not is_plain_name(name) or name.count("/") > DEEPEST:
        raise ValueError("it leads out of its directory, or too deep into it")
    os.fsencode(name)
    return name


def _file(facts: Any) -> KeptFile:
    size, digest, inode, source_size, changed = facts
    return KeptFile(_count(size), str(digest), (_count(inode), _count(source_size), _whole(changed)))


def _whole(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError("not a whole number")
    return number


def _count(number: object) -> int:
    if _whole(number) < 0:
        raise ValueError("a negative number")
    return _whole(number)


def _link(target: object) -> str:
    if not isinstance(target, str) or not 0 < len(os.fsencode(target)) <= _LONGEST_LINK or "\0" in target:
        raise ValueError("not the target of a link")
    return target
