"""Snapshots of checkpoints without a shared file system: they come back with a job and go to the next.

A snapshot has a manifest of its own with sizes and digests: one whose transfer was cut is left out, and the
job compares the digests before it uses one.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from outlast.exchange import file_trees
from outlast.filesystem import sync_directory
from outlast.node.snapshots.snapshot_manifest import Snapshot
from outlast.node.snapshots.snapshot_store import list_whole, read_mark, write_mark
from outlast.untrusted_files import (
    directory_below,
    remove,
    walk,
)

#: A commit has the newest snapshot only: so many of the earlier ones stay beside it.
_EARLIER = 2


def bring(place: Path, relative: str, target: Path, in_part: bool) -> None:
    """Replace the snapshots of a run by those that came back, if one is whole. Raise OSError.

    With `in_part` only the newest one came back, and earlier ones stay. Can be repeated after a crash.
    """
    coming, going = target.with_name("snapshots.coming"), target.with_name("snapshots.going")
    if going.is_dir() and not target.exists():
        going.rename(target)  # the controller was killed between the two renames below
    returned = _list(place, relative)
    if not returned:
        return
    before = [one for one in _list(target, "") if one.number < returned[0].number] if in_part else []
    remove(coming)
    for one in before[-_EARLIER:]:
        file_trees.copy(target, one.name, coming / one.name)
    for one in returned:
        file_trees.copy(place, "%s/%s" % (relative, one.name), coming / one.name)
    _copy_mark(place, relative, coming, returned)
    file_trees.sync_tree(coming)
    remove(going)
    if target.exists():
        target.rename(going)
    coming.rename(target)
    sync_directory(target.parent)
    remove(going)


def provide(source: Path, target: Path, most: int, most_bytes: int | None) -> None:
    """Copy the newest snapshots of a run to `target`, within the bounds. Raise OSError."""
    room = most_bytes
    provided = []
    for one in _list(source, "")[::-1][:most]:
        if room is not None:
            room -= one.size
            if room < 0:
                break
        file_trees.copy(source, one.name, target / one.name)
        provided.append(one)
    _copy_mark(source, "", target, provided)


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    with directory_below(directory) as top:
        return sum(entry.status.st_size for entry in walk(top) if entry.is_file)


def _copy_mark(top: Path, relative: str, target: Path, snapshots: list[Snapshot]) -> None:
    """Copy the mark of a snapshot that was being put back when its job ended: the next job completes it."""
    marked = None
    with suppress(FileNotFoundError, NotADirectoryError), directory_below(top, relative) as directory:
        marked = read_mark(directory)
    for one in snapshots:
        if one.number == marked:
            with directory_below(target) as goal:
                write_mark(goal, one.number)


def _list(top: Path, relative: str) -> list[Snapshot]:
    with suppress(FileNotFoundError, NotADirectoryError), directory_below(top, relative) as directory:
        return list_whole(directory)
    return []
