"""The directory of a local cluster on this machine."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from outlast.errors import BadInput, NotWritable


def cluster_directory(name: str, root: Path | None = None) -> Path:
    """Return the directory of a cluster, created for its owner only. Raises BadInput or NotWritable.

    Whoever can write there could put another daemon's socket in the place of ours, and get our jobs.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise BadInput(
            "%r cannot be the name of a local cluster: use letters, digits, dots, dashes and underscores"
            % name
        )
    directory = (root or find_root()).absolute() / name
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(directory.parent, directory.parent.stat(), may_be_shared=True)
        _check_owner(directory, directory.lstat())
    except OSError as error:
        raise NotWritable(
            "%s: the local cluster's directory cannot be created (%s); "
            "set OUTLAST_LOCAL_ROOT to a directory of yours" % (directory, error.strerror)
        ) from error
    return directory


def _check_owner(path: Path, found: os.stat_result, may_be_shared: bool = False) -> None:
    """Raise NotWritable unless this is a directory of this user that nobody else can write to.

    `may_be_shared`: one such as /tmp, where nobody can replace what belongs to others, is allowed.
    """
    if may_be_shared and found.st_uid in (0, os.geteuid()) and found.st_mode & stat.S_ISVTX:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise NotWritable(
            "%s: the local cluster's directory is not a directory of yours (mode %o, owner %d, you are %d); "
            "set OUTLAST_LOCAL_ROOT to a directory of yours"
            % (path, stat.S_IMODE(found.st_mode), found.st_uid, os.geteuid())
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotWritable(
            "%s: others can write to the local cluster's directory (mode %o); type `chmod go-w %s`, or set "
            "OUTLAST_LOCAL_ROOT to a directory of yours" % (path, stat.S_IMODE(found.st_mode), path)
        )


def find_root() -> Path:
    """Return the directory of all local clusters of this user on this machine. Raises NotWritable."""
    chosen = os.environ.get("OUTLAST_LOCAL_ROOT")
    if chosen:
        return Path(chosen)
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
        # A home may be shared between machines; process ids and sockets are not.
        root = Path(state) / "outlast" / ("local-" + os.uname().nodename)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or none that may be written
        return _root_without_home(Path("/tmp"))
    return root if os.access(root, os.W_OK | os.X_OK) else _root_without_home(Path("/tmp"))


def _root_without_home(shared: Path) -> Path:
    """Return a directory in a world-writable one, after checking that it belongs to this user alone."""
    root = shared / ("outlast-%d" % os.getuid())
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise NotWritable(
            "%s: %s; set OUTLAST_LOCAL_ROOT to a directory of yours" % (root, error.strerror)
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NotWritable(
            "%s: is not a directory that belongs to you alone (mode %o, owner %d); remove it, or set "
            "OUTLAST_LOCAL_ROOT to a directory of yours" % (root, stat.S_IMODE(found.st_mode), found.st_uid)
        )
    return root
