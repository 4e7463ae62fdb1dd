"""The SQLite file of a journal: opening, checking, transactions under the lease, errors with their remedy.

A writer holds the lease; every transaction checks that it still does. A reader of a journal that other users
could have changed gets a private copy.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from outlast.errors import (
    JournalDamaged,
    JournalHeld,
    JournalLocked,
    JournalUnavailable,
    NotWritable,
)
from outlast.filesystem import is_local
from outlast.journal import format as journal_format
from outlast.journal.codec import Parse, parse_own, parse_untrusted
from outlast.journal.private_copy import StepLimit, strange_definitions
from outlast.journal.sqlite_file import (
    BUSY,
    LONGEST_PATH,
    describe_damage,
    file_identity,
    file_state,
    open_to_read,
    open_to_write,
)
from outlast.text import printable

#: No clock shows a later time than this, in seconds since the epoch.
LATEST = 1e11

_Record = TypeVar("_Record")


class JournalFile:
    """The file of a journal, open for reading, or with `create` for writing under a lease.

    All methods raise JournalDamaged, JournalHeld or NotWritable instead of SQLite's errors.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        #: The epoch of the lease under which this process writes; None: it has none.
        self.epoch: int | None = None
        #: Of a journal that other users could have changed: it is a copy (see `private_copy`).
        self._limit: StepLimit | None = None
        self._parse: Parse = parse_own
        if path.is_dir():
            raise JournalDamaged(describe_damage(path, "it is a directory"))
        if not create and not os.path.lexists(path):
            raise JournalDamaged("%s: no such journal; nothing has been submitted here yet" % path)
        if create:
            with self._translate_errors():
                self._db = open_to_write(path)
                self._prepare()
        else:
            self._open_to_read()
        self._place: tuple[int, int] | None = None
        with suppress(OSError):  # `check_location` reports it
            self._place = file_identity(path)

    def _open_to_read(self) -> None:
        self._state = file_state(self.path)
        with self._translate_errors():
            try:
                opened = open_to_read(self.path)
            except OSError as error:
                raise JournalDamaged("%s: it cannot be read: %s" % (self.path, error.strerror)) from error
            self._db, self._limit = opened.db, opened.limit
            if self._limit is not None:
                self._parse = parse_untrusted
                self._check_copy()
            self._check_format()

    def _check_copy(self) -> None:
        """Raise JournalDamaged unless the tables are ours and the file is sound: then queries do no harm."""
        strange = strange_definitions(self._db, journal_format.SCHEMA)
        if strange and "about" not in strange:
            self._check_format()  # another version of Outlast may make other tables
        if strange:
            raise JournalDamaged(self._describe("its tables are not made by Outlast: %s" % strange[0][:100]))
        self.check()

    def _prepare(self) -> None:
        if journal_format.has_tables(self._db):
            self._check_format()
        self._db.execute("PRAGMA synchronous=FULL")
        # WAL needs shared memory between processes, which network file systems do not provide.
        mode = "WAL" if is_local(self.path.parent) else "DELETE"
        self._db.execute("PRAGMA journal_mode=%s" % mode)
        with self._transaction(checked=False):
            if not journal_format.has_tables(self._db):
                journal_format.create_tables(self._db)

    def _check_format(self) -> None:
        error = journal_format.error_of_format(self._db)
        if error:
            raise JournalDamaged("%s: %s" % (self.path, error))

    def refresh(self) -> None:
        """Read what was written since; needed where other users could have changed the file."""
        if self._limit is not None and file_state(self.path) != self._state:
            self._db.close()
            self.forget()
            self._open_to_read()

    def close(self) -> None:
        self._db.close()

    def reopen(self) -> None:
        """Open the file of a writer anew, after it could not be written; what is in memory is dropped.

        The lease is kept, unless another controller has taken over meanwhile: the next write checks that.
        """
        self.forget()
        with suppress(sqlite3.Error):
            self._db.close()
        self.check_location()
        with self._translate_errors():
            self._db = open_to_write(self.path)
            self._prepare()

    def check_location(self) -> None:
        """Raise JournalDamaged if the file is no longer the one that was opened: writes would be lost."""
        try:
            place = file_identity(self.path)
        except OSError as error:
            raise JournalUnavailable("%s: %s" % (self.path, error.strerror)) from error
        if place != self._place:
            raise JournalDamaged(
                "%s: this journal was moved, removed or replaced while it was in use. Jobs continue; type "
                "`outlast up` where the experiment is now" % self.path
            )

    def check(self) -> None:
        """Raise JournalDamaged if SQLite finds the file damaged."""
        with self._translate_errors():
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise JournalDamaged(self._describe(found))

    def forget(self) -> None:
        """Drop what is in memory, so that it is read from disk again; for subclasses that keep anything."""

    # The lease.

    def lease(self) -> tuple[int, Mapping[str, Any]]:
        """Return the epoch and the holder of the lease; the holder is empty if there is none."""
        with self._translate_errors():
            row = self._db.execute("SELECT epoch, holder FROM lease").fetchone()
            if row is None:
                return 0, {}
            if self._limit is None:
                return row[0], json.loads(row[1])
        return row[0], _read_holder(row[1])

    def acquire_lease(self, expected: int, holder: Mapping[str, Any]) -> bool:
        """Return True and become the writer if the epoch is still `expected`."""
        with self._transaction(checked=False):
            row = self._db.execute("SELECT epoch FROM lease").fetchone()
            if (row[0] if row else 0) != expected:
                return False
            self._db.execute(
                "INSERT OR REPLACE INTO lease VALUES (1, ?, ?)", (expected + 1, json.dumps(holder))
            )
            journal_format.note_writer(self._db)
        self.epoch = expected + 1
        self.forget()
        return True

    def renew_lease(self, holder: Mapping[str, Any]) -> None:
        """Store a new heartbeat in `holder`; an empty holder releases the lease."""
        with self._transaction():
            self._db.execute("UPDATE lease SET holder=?", (json.dumps(holder),))

    @contextmanager
    def _transaction(self, checked: bool = True) -> Iterator[None]:
        if self._limit is not None:
            raise NotWritable("%s: other users can change this journal; it was opened to read it" % self.path)
        if self._db.in_transaction:
            yield
            return
        with self._translate_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if checked:
                    self._check_lease()
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self.forget()
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):  # nothing was committed; `reopen` rolls it back
                        self._db.execute("ROLLBACK")
                raise

    def _check_lease(self) -> None:
        row = self._db.execute("SELECT epoch FROM lease").fetchone()
        if self.epoch is None or row is None or row[0] != self.epoch:
            raise JournalHeld("%s: another controller has taken over this experiment" % self.path)

    def _describe(self, why: str) -> str:
        """Return the message for a journal that cannot be read."""
        if self._limit is None:
            return describe_damage(self.path, why)
        return "%s: the journal cannot be read (%s)" % (self.path, why)

    def _remedy(self) -> str:
        if len(os.fsencode(self.path.absolute())) > LONGEST_PATH:
            return "but SQLite cannot open paths longer than %d bytes; move the experiment" % LONGEST_PATH
        if not os.access(self.path.parent, os.W_OK):
            return "but you have no permission to write here"
        return "free some space or correct the permissions and try again"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into errors that name the remedy."""
        if self._limit is not None:
            self._limit.restart()
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "full" in text or "readonly" in text or "unable to open" in text or "disk I/O" in text:
                raise JournalUnavailable(
                    "%s: %s; nothing was lost, %s" % (self.path, text, self._remedy())
                ) from error
            if "locked" in text:
                raise JournalLocked(
                    "%s: another process has kept it locked for %d s" % (self.path, BUSY)
                ) from error
            if "interrupted" in text:
                raise JournalDamaged("%s: reading it takes too long" % self.path) from error
            raise JournalDamaged(self._describe(text)) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise JournalDamaged(self._describe(str(error))) from error

    def _decode(self, read: Callable[[str, Parse], _Record], record: str) -> _Record:
        """Return the record. Raise JournalDamaged: a newer version of Outlast wrote it, or it is damaged."""
        try:
            return read(record, self._parse)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            newer = journal_format.error_of_record(self._db)
            if newer:
                raise JournalDamaged("%s: %s" % (self.path, newer)) from error
            why = "a record cannot be read: %s: %s" % (type(error).__name__, printable(str(error))[:200])
            raise JournalDamaged(self._describe(why)) from error


def _read_holder(record: str) -> Mapping[str, Any]:
    """Return the holder that another user wrote; empty if it is none."""
    try:
        holder = parse_untrusted(record)
        names = all(isinstance(holder[key], str) for key in ("host", "boot", "purpose"))
        times = all(0 <= float(holder[key]) < LATEST for key in ("since", "beat"))
        numbers = int(holder["pid"]) > 0 and (holder["born"] is None or int(holder["born"]) >= 0)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        return {}
    return holder if names and times and numbers else {}
