"""The last step of unpacking: a complete tree is renamed to its target, or merged into an existing one."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Callable, Iterator

from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable
from outlast.node.archives.tree import Tree
from outlast.node.archives.workspace import PendingMove, Workspace
from outlast.node.files import read_blocks, sync_directory
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_file


def check_conflicts(
    workspace: Workspace, moves: list[PendingMove], pulse: Callable[[], None] = no_pulse
) -> None:
    """Create the directories that `moves` lead into, and check that nothing would be overwritten.

    Raises BadArchive; nothing has been moved then.
    """
    for move in moves:
        folder = os.path.dirname(move.path)
        with contextlib.closing(Tree(workspace.members_directory(move.parent))) as tree:
            tree.make_directory(os.fsencode(folder))
    destinations: set[str] = set()
    for move in moves:
        pulse()
        destination = _destination(workspace, move)
        is_taken = destination in destinations or os.path.lexists(destination)
        destinations.add(destination)
        if is_taken:
            raise BadArchive(
                "a nested archive would be unpacked to %s, but the archive has that name already; "
                "with `unpack: yes` nested archives stay as they are" % printable(os.fsencode(move.path))
            )
    if os.path.lexists(workspace.target):
        for conflict in _conflicts(workspace.tree, workspace.target, pulse):
            raise BadArchive(
                "%s exists already and differs from the archive's; remove it, or unpack to another directory"
                % printable(os.fsencode(conflict))
            )


def move_into_place(
    workspace: Workspace, moves: list[PendingMove], pulse: Callable[[], None] = no_pulse
) -> None:
    """Move everything to its final place, durably. What an earlier process has moved is skipped."""
    # A nested archive has a higher number than the one around it, and must be moved first.
    for move in sorted(moves, key=lambda move: -move.number):
        source = move.kept or workspace.members_directory(move.number)
        if os.path.lexists(source):
            os.rename(source, _destination(workspace, move))
    if os.path.lexists(workspace.tree):
        if os.path.lexists(workspace.target):
            _merge(workspace.tree, workspace.target, pulse)
        else:
            os.rename(workspace.tree, workspace.target)
    sync_directory(os.path.dirname(workspace.target))


def _destination(workspace: Workspace, move: PendingMove) -> str:
    return os.path.join(workspace.members_directory(move.parent), move.path)


def _conflicts(source: str, target: str, pulse: Callable[[], None]) -> Iterator[str]:
    """Yield the paths in `target` that differ from what would be moved there."""
    pulse()
    if not _is_directory(target):
        yield target
        return
    for name in os.listdir(source):
        ours, theirs = os.path.join(source, name), os.path.join(target, name)
        if not os.path.lexists(theirs):
            continue
        if _is_directory(ours):
            yield from _conflicts(ours, theirs, pulse)
        elif not _is_same_file(ours, theirs, pulse):
            yield theirs


def _merge(source: str, target: str, pulse: Callable[[], None]) -> None:
    pulse()
    for name in os.listdir(source):
        ours, theirs = os.path.join(source, name), os.path.join(target, name)
        if not os.path.lexists(theirs):
            os.rename(ours, theirs)
        elif _is_directory(ours) and _is_directory(theirs):
            _merge(ours, theirs, pulse)
        elif _is_same_file(ours, theirs, pulse):
            os.unlink(ours)
        else:
            raise BadArchive("%s was created while the archive was unpacked" % printable(os.fsencode(theirs)))
    os.rmdir(source)
    sync_directory(target)


def _is_directory(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _is_same_file(one: str, other: str, pulse: Callable[[], None]) -> bool:
    """Return True if both are regular files with the same content."""
    if any(not stat.S_ISREG(os.lstat(path).st_mode) for path in (one, other)):
        return False
    if os.path.getsize(one) != os.path.getsize(other):
        return False
    with open_file(one) as first, open_file(other) as second:
        return all(block == second.read(len(block)) for block in read_blocks(first, pulse))
