"""The SQLite file of a gateway: its tables, and transactions that are durable when they return.

`gateway up` writes most of it; commands such as `gateway cancel` write single rows meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outlast.errors import BadInput, JournalDamaged, JournalLocked, JournalUnavailable
from outlast.filesystem import describe_error, is_local
from outlast.journal import ownership
from outlast.journal.sqlite_file import connect

FORMAT = "1"

SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, queue TEXT NOT NULL, digest TEXT NOT NULL,
    size INTEGER NOT NULL, body BLOB NOT NULL, properties TEXT NOT NULL, redelivered INTEGER NOT NULL,
    acked INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, request INTEGER);
CREATE INDEX new_messages ON messages (number) WHERE state = 'recorded';
CREATE INDEX quarantined_messages ON messages (number) WHERE state = 'quarantined';
CREATE INDEX messages_by_digest ON messages (digest, number);
CREATE TABLE requests (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, digest TEXT NOT NULL, queue TEXT NOT NULL,
    dialect TEXT NOT NULL, template TEXT NOT NULL, user TEXT NOT NULL, reply_to TEXT NOT NULL,
    correlation BLOB, at REAL NOT NULL, deadline REAL, state TEXT NOT NULL, body TEXT NOT NULL,
    run TEXT NOT NULL, submitted REAL, started REAL, ended REAL, answered REAL, cancel TEXT NOT NULL,
    failure TEXT, note TEXT NOT NULL);
CREATE INDEX requests_by_state ON requests (state, number);
CREATE INDEX requests_by_template ON requests (template, state);
CREATE INDEX open_requests ON requests (template, user, number) WHERE state IN ('accepted', 'running');
CREATE INDEX waiting_requests ON requests (template, user, number)
    WHERE state = 'accepted' AND submitted IS NULL AND cancel = '';
CREATE INDEX turns ON requests (template, user, submitted) WHERE submitted IS NOT NULL;
CREATE INDEX requests_by_user ON requests (template, user, at);
CREATE INDEX deadlines ON requests (deadline) WHERE state IN ('accepted', 'running') AND deadline IS NOT NULL;
CREATE UNIQUE INDEX requests_by_run ON requests (run) WHERE run != '';
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY, request INTEGER, message INTEGER, exchange TEXT NOT NULL,
    routing_key TEXT NOT NULL, correlation BLOB, kind TEXT NOT NULL, content_type TEXT NOT NULL,
    expiration INTEGER, body BLOB, file TEXT, size INTEGER NOT NULL, state TEXT NOT NULL,
    made REAL NOT NULL, due REAL NOT NULL, tries INTEGER NOT NULL, confirmed REAL, reason TEXT NOT NULL);
CREATE INDEX due_answers ON outbox (due) WHERE state = 'waiting';
CREATE INDEX waiting_answers ON outbox (made) WHERE state = 'waiting';
CREATE INDEX answers_of_request ON outbox (request, number);
CREATE TABLE cursors (template TEXT PRIMARY KEY, entry INTEGER NOT NULL) WITHOUT ROWID;
"""


class RecordDamaged(JournalDamaged):
    """The record of requests cannot be read."""


class RecordLocked(JournalLocked):
    """Another process has locked the record for longer than a transaction takes."""


class RecordUnavailable(JournalUnavailable):
    """The record can neither be read nor written now."""


#: Errors of the record, which concern everything; those of a journal concern one template.
RECORD_ERRORS = (RecordDamaged, RecordLocked, RecordUnavailable)


def _make_private(file: Path, create: bool) -> None:
    """Create the file if that is wanted, and let nobody else read it: it has requests, and signed URLs.

    SQLite gives the files beside it the same mode. Raise RecordUnavailable.
    """
    try:
        if create:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        for each in (file, *(Path(str(file) + suffix) for suffix in ownership.AUXILIARY)):
            with suppress(FileNotFoundError):
                each.chmod(0o600)
    except OSError as error:
        raise RecordUnavailable("%s: it cannot be opened: %s" % (file, describe_error(error))) from error


class RecordFile:
    """The open file; SQLite's errors become RECORD_ERRORS."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not os.path.lexists(path):
            raise BadInput("%s: no requests yet; `outlast gateway up` creates it" % path)
        with self.translated_errors():
            file = ownership.resolve_own_link(path)
            ownership.check_owner(file)
            ownership.check_rollback_journal(file)
            _make_private(file, create)
            self._db = connect(file, "mode=rw")
            self._prepare()

    def _prepare(self) -> None:
        self._db.execute("PRAGMA synchronous=FULL")
        mode = "WAL" if is_local(self.path.parent) else "DELETE"
        self._db.execute("PRAGMA journal_mode=%s" % mode)
        with self.transaction():
            if self._db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                for statement in SCHEMA.split(";\n"):
                    if statement.strip():
                        self._db.execute(statement)
                self._db.execute("INSERT INTO about VALUES ('format', ?)", (FORMAT,))
        found = self.about("format")
        if found != FORMAT:
            raise RecordDamaged(
                "%s: it has format %s; this version of Outlast reads format %s. Nothing was changed"
                % (self.path, found[:9] or "?", FORMAT)
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def about(self, key: str) -> str:
        """Return the value of a key; empty if there is none."""
        row = self.query("SELECT value FROM about WHERE key=?", key).fetchone()
        return str(row[0]) if row else ""

    def set_about(self, key: str, value: str) -> None:
        """Store the value of a key."""
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, value))

    def query(self, text: str, *arguments: object) -> sqlite3.Cursor:
        """Execute a statement; one that writes must be inside `transaction`."""
        with self.translated_errors():
            return self._db.execute(text, arguments)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, durably, or nothing of it. Transactions inside join it."""
        if self._db.in_transaction:
            yield
            return
        with self.translated_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):  # nothing was committed, which is what counts
                        self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is written inside if it raises, and nothing else of the transaction around it."""
        with self.transaction(), self.translated_errors():
            self._db.execute("SAVEPOINT part")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK TO part")
                raise
            finally:
                if self._db.in_transaction:
                    self._db.execute("RELEASE part")

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into Outlast's, with the remedy."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text or "busy" in text:
                raise RecordLocked("%s: another process has locked it" % self.path) from error
            raise RecordUnavailable("%s: it cannot be written now: %s" % (self.path, text)) from error
        except sqlite3.DatabaseError as error:
            raise RecordDamaged(
                "%s: the record of requests is damaged (%s). Runs and results are untouched; restore a copy "
                "before the gateway is started again" % (self.path, error)
            ) from error
