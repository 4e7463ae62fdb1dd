"""Deliveries of jobs on this side: compared with what the job logged, moved to `results/`, listed.

A node program made them, and a training may have changed them since: no link in them is followed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast.domain import untrusted
from outlast.filesystem import sync_directory
from outlast.node import legs
from outlast.node.files import copy_tree
from outlast.node.outputs.delivery import deliver
from outlast.untrusted_files import open_directory, remove_tree, walk

#: The most characters of a delivered file's name in a message.
LONGEST_NAME = 200
#: In place of a size: a directory, and what is neither a file nor a directory.
_DIRECTORY, _ODD = -1, -2


def find_delivery(exchange: Path) -> Path:
    """Return the delivery of the last leg that delivered anything."""
    held = [Path(leg.delivery_path) for leg, holder in legs.claimed(str(exchange)) if not holder.fenced]
    return next((place for place in reversed(held) if place.exists()), exchange / "output")


def find_error(directory: Path, delivered: Mapping[str, Any], total: tuple[int, int] | None = None) -> str:
    """Compare a delivery with its manifest, seen from this side; return the difference, empty if none."""
    for name in delivered:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return "the delivery names a file outside of itself: %s" % untrusted.text(name, LONGEST_NAME)
    try:
        found = list_sizes(directory)
    except FileNotFoundError:
        found = {}
    except OSError as error:
        return "the delivery cannot be read: %s" % error.strerror
    for name, facts in delivered.items():
        size = untrusted.integer(facts.get("size")) if isinstance(facts, dict) else None
        short = untrusted.text(name, LONGEST_NAME)
        if name not in found:
            return "the delivered file %s is missing" % short
        if found[name] < 0:
            return "the delivered file %s is not a regular file" % short
        if found[name] != size:
            expected = "an unknown number" if size is None else size
            return "the delivered file %s has %d bytes instead of %s" % (short, found[name], expected)
    odd = next((name for name, size in found.items() if size == _ODD), None)
    if odd is not None:
        return "the delivered file %s is not a regular file" % untrusted.text(odd, LONGEST_NAME)
    if not directory.is_dir():
        return "nothing was delivered"
    sizes = [size for size in found.values() if size >= 0]
    if total is not None and total != (len(sizes), sum(sizes)):
        return "the delivery has %d files of %d bytes instead of %d of %d" % (len(sizes), sum(sizes), *total)
    return ""


def list_sizes(directory: Path) -> dict[str, int]:
    """Return the size of each file in a delivery, or `_DIRECTORY`, or `_ODD` for the rest. Raise OSError."""
    top = open_directory(directory)
    try:
        return {
            entry.path: entry.status.st_size if entry.is_file else _DIRECTORY if entry.is_directory else _ODD
            for entry in walk(top)
        }
    finally:
        os.close(top)


def move(source: Path, target: Path) -> None:
    """Rename `source`; to another file system, copy it and rename the copy."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = target.with_name(".%s.tmp" % target.name)
        remove_quietly(temporary)
        copy_tree(str(source), str(temporary))
        deliver(str(temporary), str(target))
        remove_quietly(source)
    sync_directory(target.parent)


def keep_earlier(target: Path, token: str) -> None:
    """Rename results, so that others can have their name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target.rename(target.with_name("%s.before-%s-%s" % (target.name, stamp, token)))


def remove_odd(directory: Path) -> None:
    """Remove everything but files and directories."""
    top = open_directory(directory)
    try:
        for entry in walk(top):
            if not entry.is_directory and not entry.is_file:
                os.unlink(entry.name, dir_fd=entry.dir_fd)
    finally:
        os.close(top)


def remove_quietly(directory: Path) -> None:
    """Remove a directory of ours, as far as that is possible: what stays only takes space."""
    with suppress(OSError):
        remove_tree(str(directory), ignore_errors=True)
