"""Delivery of validated outputs: complete, durable, and under one name that appears at once."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import suppress
from typing import Callable, Dict

from outlast.node.files import copy_tree, read_blocks, sync_directory
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_directory, open_file, remove_tree, walk

#: Size and SHA-256 of each file, by relative path.
Manifest = Dict[str, Dict[str, object]]

#: A longer manifest is not logged, in characters of JSON: its readers look at the end of a log.
_LONGEST_LOGGED = 256 * 1024


def deliver(output: str, target: str, pulse: Callable[[], None] = no_pulse) -> Manifest:
    """Deliver the directory `output` as `target`, by a rename if both are on one file system.

    If `pulse` raises, `target` does not appear. Raises OSError.
    """
    parent = os.path.dirname(target)
    if os.lstat(output).st_dev == os.stat(parent).st_dev:
        manifest = _seal(output, pulse)
        try:
            os.rename(output, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            if manifest:  # an empty directory need not be durable
                sync_directory(parent)
            return manifest
    temporary = os.path.join(parent, f".{os.path.basename(target)}.{os.getpid()}.tmp")
    try:
        copy_tree(output, temporary, pulse)
        manifest = _seal(temporary, pulse)
        os.rename(temporary, target)
    except BaseException:
        with suppress(OSError):  # it only takes space
            remove_tree(temporary, ignore_errors=True)
        raise
    sync_directory(parent)
    return manifest


def to_log(manifest: Manifest) -> dict[str, object]:
    """Return the fields that describe a delivery in the event log: its totals and, unless long, all files."""
    total = sum(int(str(facts["size"])) for facts in manifest.values())
    is_short = len(json.dumps(manifest)) <= _LONGEST_LOGGED
    return {
        "delivered": manifest if is_short else None,
        "delivered_total": {"files": len(manifest), "bytes": total},
    }


def _seal(directory: str, pulse: Callable[[], None]) -> Manifest:
    """Make every file and directory durable; return the manifest."""
    manifest: Manifest = {}
    top = open_directory(directory)
    try:
        for entry in walk(top, pulse):
            if entry.is_directory:
                sync_directory(entry.name, entry.dir_fd)
            else:
                manifest[entry.path] = _seal_file(entry.name, entry.dir_fd, pulse)
    finally:
        os.close(top)
    if manifest:
        sync_directory(directory)
    return manifest


def _seal_file(name: str, dir_fd: int, pulse: Callable[[], None]) -> dict[str, object]:
    digest = hashlib.sha256()
    size = 0
    with open_file(name, dir_fd) as file:
        for block in read_blocks(file, pulse):
            digest.update(block)
            size += len(block)
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}
