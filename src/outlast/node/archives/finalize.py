"""Making it visible: a tree that is whole is renamed to its target, or moved into one that is there."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Callable, Iterator

from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown
from outlast.node.archives.tree import Tree
from outlast.node.archives.workspace import Late, Workspace
from outlast.node.files import blocks, open_file, sync_directory
from outlast.node.pulse import silent


def check(staging: Workspace, lates: list[Late], pulse: Callable[[], None] = silent) -> None:
    """That everything has a place of its own. Raises BadArchive, and has moved nothing then."""
    for late in lates:
        folder = os.path.dirname(late.path)
        with contextlib.closing(Tree(staging.late_folder(late.parent))) as tree:
            tree.folder(os.fsencode(folder))
    places: set[str] = set()
    for late in lates:
        pulse()
        place = _place(staging, late)
        is_taken = place in places or os.path.lexists(place)
        places.add(place)
        if is_taken:
            raise BadArchive(
                "an archive inside the archive is to become %s, and there is something of that name already; "
                "with `unpack: yes` the archives inside stay as they are" % shown(os.fsencode(late.path))
            )
    if os.path.lexists(staging.target):
        for conflict in _conflicts(staging.tree, staging.target, pulse):
            raise BadArchive(
                "%s is there already, and the archive has something else; remove it, or unpack elsewhere"
                % shown(os.fsencode(conflict))
            )


def move(staging: Workspace, lates: list[Late], pulse: Callable[[], None] = silent) -> None:
    """Put everything in its place. What an earlier process has moved is passed over."""
    # An archive has a higher number than the one that it was in, and is moved before it.
    for late in sorted(lates, key=lambda late: -late.number):
        source = late.kept or staging.late_folder(late.number)
        if os.path.lexists(source):
            os.rename(source, _place(staging, late))
    if os.path.lexists(staging.tree):
        if os.path.lexists(staging.target):
            _merge(staging.tree, staging.target, pulse)
        else:
            os.rename(staging.tree, staging.target)
    sync_directory(os.path.dirname(staging.target))


def _place(staging: Workspace, late: Late) -> str:
    return os.path.join(staging.late_folder(late.parent), late.path)


def _conflicts(source: str, target: str, pulse: Callable[[], None]) -> Iterator[str]:
    """What is in `target` and differs from what is to be moved there."""
    pulse()
    if not _is_folder(target):
        yield target
        return
    for name in os.listdir(source):
        ours, theirs = os.path.join(source, name), os.path.join(target, name)
        if not os.path.lexists(theirs):
            continue
        if _is_folder(ours):
            yield from _conflicts(ours, theirs, pulse)
        elif not _same(ours, theirs, pulse):
            yield theirs


def _merge(source: str, target: str, pulse: Callable[[], None]) -> None:
    pulse()
    for name in os.listdir(source):
        ours, theirs = os.path.join(source, name), os.path.join(target, name)
        if not os.path.lexists(theirs):
            os.rename(ours, theirs)
        elif _is_folder(ours) and _is_folder(theirs):
            _merge(ours, theirs, pulse)
        elif _same(ours, theirs, pulse):
            os.unlink(ours)
        else:
            raise BadArchive("%s came to be while the archive was unpacked" % shown(os.fsencode(theirs)))
    os.rmdir(source)
    sync_directory(target)


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _same(one: str, other: str, pulse: Callable[[], None]) -> bool:
    """Whether both are files with the same content."""
    if any(not stat.S_ISREG(os.lstat(path).st_mode) for path in (one, other)):
        return False
    if os.path.getsize(one) != os.path.getsize(other):
        return False
    with open_file(one) as first, open_file(other) as second:
        return all(block == second.read(len(block)) for block in blocks(first, pulse))
