"""The file a journal is in: how it is opened, whether it is there, and what to say when it is not sound."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from outlast.errors import JournalDamaged

#: How long a writer waits for a reader (or a reader for a writer) before it gives up, in seconds.
BUSY = 20.0
#: SQLite's own bound is 512, for the journal's helpers as well.
LONGEST_PATH = 500


def is_blank(path: Path) -> bool:
    """Whether there is nothing to be read there, because no controller has come to its first commit.

    Raises JournalDamaged if runs have been under way: then there was something.
    """
    try:
        db = connect_to_read(path)
    except sqlite3.Error:
        return not path.exists()  # opening it for real says what is wrong
    try:
        blank = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error:
        return not path.exists()
    finally:
        db.close()
    if blank and (path.parent / "params" / "runs").exists():
        raise JournalDamaged(damaged(path, "nothing is in it, and runs have been under way"))
    return blank


def connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        "%s?%s" % (path.absolute().as_uri(), how),
        uri=True,
        timeout=BUSY,
        isolation_level=None,
        check_same_thread=False,
    )


def connect_to_read(path: Path) -> sqlite3.Connection:
    """For a colleague without write permission, and on a full disk, too."""
    ways = ["mode=rw", "mode=ro"]  # a writer that was killed may have left work to be undone
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        ways.remove("mode=rw")
    if not any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal")):
        ways.append("mode=ro&immutable=1")  # nobody is at work on it
    for way in ways[:-1]:
        db = connect(path, way)
        try:
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            if "locked" in str(error):
                raise
            continue
        return db
    return connect(path, ways[-1])


def place(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def damaged(path: Path, why: str) -> str:
    return (
        "%s: the journal is damaged (%s). Checkpoints, logs and results are untouched. Bring back a copy, "
        "or put it aside (mv %s %s.damaged) and submit again: runs go on from their checkpoints"
        % (path, why, path.name, path.name)
    )
