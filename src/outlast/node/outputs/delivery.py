"""Handing over checked outputs: whole, durable, under one name that appears at once."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from typing import Callable, Dict

from outlast.node.files import copy_tree, open_file, read_blocks, sync_directory
from outlast.node.pulse import no_pulse

#: By relative path: size and SHA-256.
Manifest = Dict[str, Dict[str, object]]


def deliver(output: str, target: str, pulse: Callable[[], None] = no_pulse) -> Manifest:
    """Make the directory `output` appear as `target`; by a rename where both are on one file system.

    What `pulse` raises ends it before `target` is there.
    """
    parent = os.path.dirname(target)
    if os.stat(output).st_dev == os.stat(parent).st_dev:
        manifest = _seal(output, pulse)
        try:
            os.rename(output, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            if manifest:  # nothing is lost with an empty directory
                sync_directory(parent)
            return manifest
    temporary = os.path.join(parent, f".{os.path.basename(target)}.{os.getpid()}.tmp")
    try:
        copy_tree(output, temporary, pulse)
        manifest = _seal(temporary, pulse)
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(parent)
    return manifest


def _seal(directory: str, pulse: Callable[[], None]) -> Manifest:
    """Put every file and directory on disk and say what they hold."""
    manifest: Manifest = {}
    for place, names, files in os.walk(directory):
        names.sort()
        for name in sorted(files):
            path = os.path.join(place, name)
            manifest[os.path.relpath(path, directory)] = _seal_file(path, pulse)
        if names or files:
            sync_directory(place)
    return manifest


def _seal_file(path: str, pulse: Callable[[], None]) -> dict[str, object]:
    digest = hashlib.sha256()
    size = 0
    with open_file(path) as file:
        for block in read_blocks(file, pulse):
            digest.update(block)
            size += len(block)
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}
