"""Private copies of journals that other users could have changed, to read them without acting on them.

The copy is in a new directory of this user. Its rollback journal names no other file, only the tables that
Outlast makes are accepted, and nothing but queries is executed, within limits.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outlast.errors import JournalDamaged
from outlast.untrusted_files import directory_below, open_file

#: The largest journal that is copied, in bytes, all of its files together.
MOST_BYTES = 2 * 2**30
#: The most steps of SQLite's virtual machine in one query; a million runs are read in a tenth of it.
MOST_STEPS = 1_000_000_000
#: The longest value in a row, in bytes.
MOST_VALUE = 64 * 2**20
#: How often a copy is begun anew because the journal has changed meanwhile, and the seconds between.
TRIES = 20
PAUSE = 0.1

_CHUNK = 2**20
#: The steps between two checks of the limit.
_STEPS = 10_000
_WAL_HEADER = 32
#: Appended to a rollback journal: without its magic number at the very end, a name in it is ignored.
_NO_SUPER_JOURNAL = bytes(512)
#: What queries do. Everything else is refused when a statement is prepared.
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
_PRAGMAS = {"quick_check"}


class StepLimit:
    """Interrupts a query after MOST_STEPS steps; `restart` begins a new one."""

    def __init__(self) -> None:
        self._left = 0
        self.restart()

    def restart(self) -> None:
        self._left = MOST_STEPS // _STEPS

    def __call__(self) -> int:
        self._left -= 1
        return int(self._left < 0)


def open_copy(path: Path, text: Callable[[bytes], str]) -> tuple[sqlite3.Connection, StepLimit]:
    """Return a connection to a copy of the journal, and its limit; `text` decodes the text in it.

    The copy has no name any more and disappears with the connection. Raise OSError if the journal cannot be
    copied, JournalDamaged if it changes all the time, or SQLite's errors.
    """
    import tempfile  # it imports much, and `status` rarely needs it

    with tempfile.TemporaryDirectory(prefix="outlast-journal-") as folder:
        copy = Path(folder) / "journal.sqlite"
        _copy_unchanged(path, copy)
        db = sqlite3.connect(copy, isolation_level=None, check_same_thread=False)
        try:
            limit = _restrict(db, text)
            db.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens all files; recovers the last state
        except BaseException:
            db.close()
            raise
    return db, limit


def _restrict(db: sqlite3.Connection, text: Callable[[bytes], str]) -> StepLimit:
    limit = StepLimit()
    db.set_progress_handler(limit, _STEPS)
    for pragma in (
        "trusted_schema=OFF",
        "cell_size_check=ON",
        "mmap_size=0",
        "temp_store=MEMORY",
        "query_only=ON",
    ):
        db.execute("PRAGMA " + pragma)
    if sys.version_info >= (3, 11):
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE)
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    if sys.version_info >= (3, 12):
        db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        db.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
        db.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
    db.text_factory = text
    db.set_authorizer(_authorize)
    return limit


def _authorize(action: int, first: str | None, *_: str | None) -> int:
    if action in _ALLOWED or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def strange_definitions(db: sqlite3.Connection, schema: str) -> list[str]:
    """Return the names of tables, indices and all else that is not as `schema` makes it."""
    expected = sqlite3.connect(":memory:")
    expected.text_factory = db.text_factory
    try:
        expected.executescript(schema)
        made = _definitions(expected)
    finally:
        expected.close()
    return sorted({name for _, name, _, _ in _definitions(db) ^ made})


def _definitions(db: sqlite3.Connection) -> set[tuple[str, str, str, str]]:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100")
    return {(str(kind), str(name), str(table), str(sql)) for kind, name, table, sql in rows}


def _copy_unchanged(path: Path, copy: Path) -> None:
    """Copy the journal's files, again if their state was replaced by another meanwhile."""
    with directory_below(path.parent) as source:
        for _ in range(TRIES):
            before = _state(source, path.name)
            left = MOST_BYTES
            # The file first: changes are in a rollback journal before, and in a WAL until afterwards.
            for suffix in ("", "-journal", "-wal"):
                left = _copy_file(source, path.name + suffix, Path(str(copy) + suffix), left)
            if _state(source, path.name) == before:
                return
            time.sleep(PAUSE)
    raise JournalDamaged("%s: it changes all the time; try again" % path)


def _state(source: int, name: str) -> tuple[object, ...]:
    """Return what changes when the file is written, or when a WAL is begun anew."""
    found: list[object] = []
    for suffix in ("", "-journal"):
        try:
            status = os.stat(name + suffix, dir_fd=source, follow_symlinks=False)
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    try:
        with open_file(name + "-wal", source) as wal:
            found.append(wal.read(_WAL_HEADER))
    except FileNotFoundError:
        found.append(None)
    return tuple(found)


def _copy_file(source: int, name: str, target: Path, left: int) -> int:
    """Copy one file, if it is there; return how many more bytes may be copied."""
    target.unlink(missing_ok=True)
    try:
        original = open_file(name, source)
    except FileNotFoundError:
        return left
    with original, target.open("xb") as copy:
        while chunk := original.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise JournalDamaged("%s: it has more than %d bytes" % (name, MOST_BYTES))
            copy.write(chunk)
        if name.endswith("-journal") and copy.tell():
            copy.write(_NO_SUPER_JOURNAL)
    return left
