"""The SQLite file of a journal: opening it, and recognising one that is blank or damaged."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from outlast.errors import JournalDamaged

#: Seconds that a reader or writer waits for a lock.
BUSY = 20.0
#: In bytes. SQLite's own limit is 512, which includes the suffixes of its auxiliary files.
LONGEST_PATH = 500


def is_blank(path: Path) -> bool:
    """Return True if there is no journal at `path`, or no controller has made its first commit there.

    Raise JournalDamaged if the file is blank although the experiment had runs.
    """
    try:
        db = connect_to_read(path)
    except sqlite3.Error:
        return not path.exists()  # opening it as a journal raises an error with the cause
    try:
        blank = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error:
        return not path.exists()
    finally:
        db.close()
    if blank and (path.parent / "params" / "runs").exists():
        raise JournalDamaged(describe_damage(path, "it is empty, although this experiment had runs"))
    return blank


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file; `mode` is the query of an SQLite URI, such as `mode=ro`."""
    return sqlite3.connect(
        "%s?%s" % (path.absolute().as_uri(), mode),
        uri=True,
        timeout=BUSY,
        isolation_level=None,
        check_same_thread=False,
    )


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading, also without write permission and on a full disk."""
    modes = ["mode=rw", "mode=ro"]  # rw first: a killed writer may have left changes to roll back
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        modes.remove("mode=rw")
    if not any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal")):
        modes.append("mode=ro&immutable=1")  # no process is writing to it
    for mode in modes[:-1]:
        db = connect(path, mode)
        try:
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            if "locked" in str(error):
                raise
            continue
        return db
    return connect(path, modes[-1])


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def describe_damage(path: Path, why: str) -> str:
    """Return the message for a journal that cannot be read, with the cause and the remedy."""
    return (
        "%s: the journal is damaged (%s). Checkpoints, logs and results are untouched. Restore a copy, "
        "or move it away (mv %s %s.damaged) and submit again: runs resume from their checkpoints"
        % (path, why, path.name, path.name)
    )
