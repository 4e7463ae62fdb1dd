"""The SQLite file of a journal: opening it, and recognising one that is blank or damaged."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import JournalDamaged
from outlast.journal import ownership
from outlast.journal.private_copy import StepLimit, open_copy
from outlast.text import printable

#: Seconds that a reader or writer waits for a lock.
BUSY = 20.0
#: In bytes. SQLite's own limit is 512, which includes the suffixes of its auxiliary files.
LONGEST_PATH = 500
#: A journal of this many bytes is not blank.
_NOT_BLANK = 2**20


@dataclass(frozen=True)
class ReadConnection:
    """A connection to read a journal."""

    db: sqlite3.Connection
    #: The limit of a query, if other users could have changed the journal: it is a copy, with safe text.
    limit: StepLimit | None = None


def is_blank(path: Path) -> bool:
    """Return True if there is no journal at `path`, or no controller has made its first commit there.

    Raise JournalDamaged if the file is blank although the experiment had runs.
    """
    if not os.path.lexists(path):
        return True  # asked first: a controller may create it while opening it fails
    file = ownership.resolve_own_link(path)
    try:
        if not ownership.is_private(file) and file.lstat().st_size >= _NOT_BLANK:
            return False  # a copy takes a while
        db = open_to_read(file).db
    except (sqlite3.Error, OSError, JournalDamaged):
        return not os.path.lexists(path)  # opening it as a journal raises an error with the cause
    try:
        blank = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error:
        return not path.exists()
    finally:
        db.close()
    if blank and (path.parent / "params" / "runs").exists():
        raise JournalDamaged(describe_damage(path, "it is empty, although this experiment had runs"))
    return blank


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open or create the file for writing. Raise NotWritable or JournalDamaged if that is not safe."""
    file = ownership.resolve_own_link(path)
    ownership.check_owner(file)
    ownership.check_rollback_journal(file)
    return connect(file, "mode=rwc")


def open_to_read(path: Path) -> ReadConnection:
    """Open the file for reading: as it is if only this user can change it, else a copy of it.

    Raise OSError or JournalDamaged if it cannot be copied, or is not safe to open.
    """
    file = ownership.resolve_own_link(path)
    if not ownership.is_private(file):
        return ReadConnection(*open_copy(file, _decode_safely))
    ownership.check_rollback_journal(file)
    return ReadConnection(connect_to_read(file))


def _decode_safely(text: bytes) -> str:
    return printable(text.decode("utf-8", "replace"))


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
    """Open a file that only this user can change, also without write permission and on a full disk."""
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
    """Return device and inode of the file; None if there is none. Raise OSError if that is not known."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def file_state(path: Path) -> tuple[object, ...]:
    """Return what changes when something is written to the journal."""
    found: list[object] = []
    for file in (path, *(Path(str(path) + suffix) for suffix in ownership.AUXILIARY)):
        try:
            status = file.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def describe_damage(path: Path, why: str) -> str:
    """Return the message for a journal that cannot be read, with the cause and the remedy."""
    return (
        "%s: the journal is damaged (%s). Checkpoints, logs and results are untouched. Restore a copy, "
        "or move it away (mv %s %s.damaged) and submit again: runs resume from their checkpoints"
        % (path, why, path.name, path.name)
    )
