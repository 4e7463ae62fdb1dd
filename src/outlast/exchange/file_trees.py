"""Trees of files that come from jobs: listed, copied by hard links and synced; no link is followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from outlast.filesystem import sync_directory
from outlast.node.files import link_or_copy
from outlast.untrusted_files import directory_below, open_directory, open_file, walk


def names(directory: int) -> list[str]:
    """Return the names in an open directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def copy(top: Path, relative: str, target: Path) -> None:
    """Copy a file, link or directory below `top`, without hidden entries; no link is followed.

    Files are hard-linked where possible. Raise OSError.
    """
    folder, _, name = relative.rpartition("/")
    with directory_below(top, folder) as directory:
        copy_entry(name, directory, target)


def copy_entry(name: str, dir_fd: int, target: Path) -> None:
    """Copy an entry of an open directory as `copy` does."""
    mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        target.mkdir(parents=True, exist_ok=True)
        inner = open_directory(name, dir_fd)
        try:
            for each in names(inner):
                if not each.startswith("."):
                    copy_entry(each, inner, target / each)
        finally:
            os.close(inner)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(mode):
        target.symlink_to(os.readlink(name, dir_fd=dir_fd))
    elif stat.S_ISREG(mode):
        link_or_copy(name, str(target), dir_fd)


def sync_tree(directory: Path) -> None:
    """Sync all files and directories: the job's own copies are about to be removed."""
    top = open_directory(directory)
    try:
        for entry in walk(top):
            if entry.is_file:
                with open_file(entry.name, entry.dir_fd) as file:
                    os.fsync(file.fileno())
            elif entry.is_directory:
                sync_directory(directory / entry.path)
    finally:
        os.close(top)
    sync_directory(directory)
