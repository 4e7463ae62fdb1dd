"""Durable writes, lost directories, errors in words, and whether a directory is on a local file system."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from outlast.node.files import sync_directory
from outlast.untrusted_files import create_file

__all__ = ["LOCAL", "describe_error", "is_gone", "is_local", "sync_directory", "write_durably"]

#: File systems on which locks and shared memory work between all processes that see a file.
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs"}) | frozenset(
    {"tmpfs", "ramfs", "overlay", "apfs", "hfs", "ufs"}
)


def is_local(directory: Path) -> bool:
    """Return True if `directory` is on a file system of this machine only; False if that is not certain."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    target = os.path.realpath(directory)
    longest, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 5 or not rest:
            continue
        mount = fields[4].encode().decode("unicode_escape")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(longest):
            longest, kind = mount, rest[0]
    return kind in LOCAL


def is_gone(directory: Path) -> bool:
    """Return True if there is certainly no such directory: what is above it can be listed and lacks it.

    False if that cannot be known: a directory above is not readable, or is a link to a place that is missing,
    such as a file system that is not mounted.
    """
    try:
        mode = directory.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        parent = directory.parent
        try:
            # The listing, because a network file system may remember for a while that a name was missing.
            return parent != directory and directory.name not in {entry.name for entry in os.scandir(parent)}
        except (FileNotFoundError, NotADirectoryError):
            return is_gone(parent)
        except OSError:
            return False
    except OSError:
        return False
    return not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode)


def describe_error(error: OSError) -> str:
    """Return `PATH: CAUSE`, for a rename `PATH -> PATH: CAUSE`; without a path, the error's own text."""
    if error.filename is None or not error.strerror:
        return str(error)
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    return "%s: %s" % (" -> ".join(paths), error.strerror)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file atomically and durably: it survives a power failure. Raises OSError."""
    temporary = path.with_name(".%s.%d.tmp" % (path.name, os.getpid()))
    try:
        with create_file(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
