"""The journal: all state of an experiment in one SQLite file inside it.

The table `entries` is append-only and authoritative. `runs` and `attempts` hold its fold, written in the same
transaction, so that showing ten thousand runs does not read a hundred thousand rows. Every write checks
that the lease is still held: a controller that was taken over can never write again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.domain.model import Attempt, EntryKind, JournalEntry, Run, RunState, Spec
from outlast.errors import JournalDamaged, JournalHeld, NotWritable
from outlast.filesystem import is_local
from outlast.journal.codec import dump, read_attempt, read_run, read_spec
from outlast.journal.records import Records
from outlast.journal.sqlite_file import (
    BUSY,
    LONGEST_PATH,
    connect,
    connect_to_read,
    describe_damage,
    file_identity,
)

FORMAT = 1

_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, token TEXT,
    data TEXT NOT NULL);
CREATE INDEX entries_of_run ON entries (run);
CREATE TABLE specs (number INTEGER PRIMARY KEY, record TEXT NOT NULL UNIQUE);
CREATE TABLE runs (
    name TEXT PRIMARY KEY, position INTEGER NOT NULL, state TEXT NOT NULL,
    record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX live_runs ON runs (state, position);
CREATE TABLE attempts (
    token TEXT PRIMARY KEY, run TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
    record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX attempts_of_run ON attempts (run, number);
CREATE TABLE requests (name TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE lease (
    only INTEGER PRIMARY KEY CHECK (only = 1), epoch INTEGER NOT NULL, holder TEXT NOT NULL);
"""

_OVER = tuple(state.value for state in RunState if state.over)


@dataclass(frozen=True)
class EntryRow:
    """An entry with its number in the journal."""

    number: int
    entry: JournalEntry


class Journal(Records):
    """The journal of one experiment, open for reading, or with `create` for writing under a lease.

    All methods raise JournalDamaged, JournalHeld or NotWritable instead of SQLite's errors.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        super().__init__()
        self.path = path
        #: The epoch of the lease under which this process writes; None: it has none.
        self.epoch: int | None = None
        self._loaded = False
        self._computed_known = False
        if path.is_dir():
            raise JournalDamaged(describe_damage(path, "it is a directory"))
        if not create and not path.exists():
            raise JournalDamaged("%s: no such journal; nothing has been submitted here yet" % path)
        with self._translate_errors():
            self._db = connect(path, "mode=rwc") if create else connect_to_read(path)
            self._prepare(create)
        self._place = file_identity(path)

    def _prepare(self, create: bool) -> None:
        self._db.execute("PRAGMA synchronous=FULL")
        if create:
            # WAL needs shared memory between processes, which network file systems do not provide.
            mode = "WAL" if is_local(self.path.parent) else "DELETE"
            self._db.execute("PRAGMA journal_mode=%s" % mode)
            with self._transaction(checked=False):
                if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name='about'").fetchone():
                    for statement in _SCHEMA.split(";\n"):
                        if statement.strip():
                            self._db.execute(statement)
                    self._db.execute("INSERT INTO about VALUES ('format', ?)", (str(FORMAT),))
        found = self._db.execute("SELECT value FROM about WHERE key='format'").fetchone()
        if found is None or found[0] != str(FORMAT):
            raise JournalDamaged(
                "%s: the journal has format %s; this version of Outlast reads format %d"
                % (self.path, found[0] if found else "?", FORMAT)
            )

    def close(self) -> None:
        self._db.close()

    def check_location(self) -> None:
        """Raise JournalDamaged if the file is no longer the one that was opened: writes would be lost."""
        if file_identity(self.path) != self._place:
            raise JournalDamaged(
                "%s: this journal was moved, removed or replaced while it was in use. Jobs continue; type "
                "`outlast up` where the experiment is now" % self.path
            )

    def check(self) -> None:
        """Raise JournalDamaged if SQLite finds the file damaged."""
        with self._translate_errors():
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise JournalDamaged(describe_damage(self.path, found))

    # Reading.

    def live(self) -> Mapping[str, Run]:
        if not self._loaded:
            marks = ",".join("?" * len(_OVER))
            with self._translate_errors():
                for (record,) in self._db.execute(
                    "SELECT record FROM runs WHERE state NOT IN (%s) ORDER BY position" % marks, _OVER
                ):
                    run = read_run(record)
                    self._runs[run.name] = run
                for (record,) in self._db.execute("SELECT record FROM attempts WHERE state != 'ended'"):
                    attempt = read_attempt(record)
                    self._attempts[attempt.token] = attempt
            self._loaded = True
        return self._runs

    def run(self, name: str) -> Run | None:
        known = super().run(name)
        if known is not None:
            return known
        with self._translate_errors():
            row = self._db.execute("SELECT record FROM runs WHERE name=?", (name,)).fetchone()
        return read_run(row[0]) if row else None

    def runs(self) -> Iterator[Run]:
        """Yield all runs in the order of their submission."""
        with self._translate_errors():
            for (record,) in self._db.execute("SELECT record FROM runs ORDER BY position"):
                yield read_run(record)

    def last_computed(self, spec: int) -> float:
        if not self._computed_known:
            # Needed only during outages of data sources; `append` keeps it up to date from then on.
            for run in self.runs():
                self._note_computed(run)
            self._computed_known = True
        return super().last_computed(spec)

    def most_relevant_runs(self, most: int) -> list[Run]:
        """Return up to `most` runs: failed ones first, then accepted, active, waiting and the rest."""
        first = ("failed", "accepted", "active", "waiting")
        order = "CASE state %s ELSE 9 END" % " ".join(
            "WHEN '%s' THEN %d" % (s, i) for i, s in enumerate(first)
        )
        with self._translate_errors():
            rows = self._db.execute("SELECT record FROM runs ORDER BY %s, position LIMIT ?" % order, (most,))
            return [read_run(record) for (record,) in rows]

    def names(self) -> list[str]:
        """Return the names of all runs in the order of their submission."""
        with self._translate_errors():
            return [name for (name,) in self._db.execute("SELECT name FROM runs ORDER BY position")]

    def counts(self) -> Mapping[str, int]:
        """Return the number of runs by state."""
        with self._translate_errors():
            return dict(self._db.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall())

    def attempt(self, token: str) -> Attempt | None:
        known = super().attempt(token)
        if known is not None:
            return known
        with self._translate_errors():
            row = self._db.execute("SELECT record FROM attempts WHERE token=?", (token,)).fetchone()
        return read_attempt(row[0]) if row else None

    def attempts(self, run: str | None = None) -> Iterator[Attempt]:
        """Yield the attempts of one run, or of all runs by name, in order."""
        where, arguments = ("WHERE run=?", (run,)) if run is not None else ("", ())
        with self._translate_errors():
            for (record,) in self._db.execute(
                "SELECT record FROM attempts %s ORDER BY run, number" % where, arguments
            ):
                yield read_attempt(record)

    def entries(self, run: str | None = None, after: int = 0) -> Iterator[EntryRow]:
        """Yield the entries of one run, or of all, whose number is greater than `after`."""
        where = "WHERE number > ?" + (" AND run=?" if run is not None else "")
        arguments = (after, run) if run is not None else (after,)
        with self._translate_errors():
            for number, at, name, kind, token, data in self._db.execute(
                "SELECT number, at, run, kind, token, data FROM entries %s ORDER BY number" % where, arguments
            ):
                yield EntryRow(number, JournalEntry(at, name, EntryKind(kind), token, json.loads(data)))

    def last_entry(self) -> int:
        """Return the number of the newest entry; 0 if there is none."""
        with self._translate_errors():
            return int(self._db.execute("SELECT coalesce(max(number), 0) FROM entries").fetchone()[0])

    def spec(self, number: int) -> Spec:
        if number not in self._specs:
            with self._translate_errors():
                row = self._db.execute("SELECT record FROM specs WHERE number=?", (number,)).fetchone()
            self._specs[number] = read_spec(row[0])
        return self._specs[number]

    def newest_spec(self) -> Spec | None:
        with self._translate_errors():
            row = self._db.execute("SELECT max(number) FROM specs").fetchone()
        return self.spec(row[0]) if row[0] is not None else None

    def has_request(self, name: str) -> bool:
        """Return True if the request of this name has been recorded."""
        with self._translate_errors():
            return bool(self._db.execute("SELECT 1 FROM requests WHERE name=?", (name,)).fetchone())

    def lease(self) -> tuple[int, Mapping[str, Any]]:
        """Return the epoch and the holder of the lease; the holder is empty if there is none."""
        with self._translate_errors():
            row = self._db.execute("SELECT epoch, holder FROM lease").fetchone()
        return (row[0], json.loads(row[1])) if row else (0, {})

    # Writing.

    def acquire_lease(self, expected: int, holder: Mapping[str, Any]) -> bool:
        """Return True and become the writer if the epoch is still `expected`."""
        with self._transaction(checked=False):
            row = self._db.execute("SELECT epoch FROM lease").fetchone()
            if (row[0] if row else 0) != expected:
                return False
            self._db.execute(
                "INSERT OR REPLACE INTO lease VALUES (1, ?, ?)", (expected + 1, json.dumps(holder))
            )
        self.epoch = expected + 1
        self.forget()
        return True

    def renew_lease(self, holder: Mapping[str, Any]) -> None:
        """Store a new heartbeat in `holder`; an empty holder releases the lease."""
        with self._transaction():
            self._db.execute("UPDATE lease SET holder=?", (json.dumps(holder),))

    def forget(self) -> None:
        """Drop what is in memory, so that it is read from disk again."""
        self._runs.clear()
        self._attempts.clear()
        self._loaded = False

    def add_spec(self, spec: Spec) -> int:
        record = dump(spec)
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO specs (record) VALUES (?)", (record,))
            row = self._db.execute("SELECT number FROM specs WHERE record=?", (record,)).fetchone()
        return int(row[0])

    def record_request(self, name: str, at: float, entries: Sequence[JournalEntry]) -> None:
        """Record a request and the entries that follow from it, in one transaction.

        It must not have been recorded before (see `has_request`).
        """
        with self._transaction():
            self._db.execute("INSERT INTO requests VALUES (?, ?)", (name, at))
            self.append(entries)

    def _persist(
        self, entries: Sequence[JournalEntry], runs: Iterable[Run], attempts: Iterable[Attempt]
    ) -> None:
        with self._transaction():
            self._db.executemany(
                "INSERT INTO entries (at, run, kind, token, data) VALUES (?, ?, ?, ?, ?)",
                [(e.at, e.run, e.kind.value, e.token, dump(e.data)) for e in entries],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)",
                [(run.name, run.position, run.state.value, dump(run)) for run in runs],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?)",
                [(a.token, a.run, a.number, a.state.value, dump(a)) for a in attempts],
            )

    def _dismiss(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.last is not None and not run.state.over:
                self._attempts.pop(run.last.token, None)
            elif run.state.over and run.accepted:
                self._attempts.pop(run.accepted, None)

    @contextmanager
    def _transaction(self, checked: bool = True) -> Iterator[None]:
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
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self.forget()
                raise

    def _check_lease(self) -> None:
        row = self._db.execute("SELECT epoch FROM lease").fetchone()
        if self.epoch is None or row is None or row[0] != self.epoch:
            raise JournalHeld("%s: another controller has taken over this experiment" % self.path)

    def _remedy(self) -> str:
        if len(os.fsencode(self.path.absolute())) > LONGEST_PATH:
            return "but SQLite cannot open paths longer than %d bytes; move the experiment" % LONGEST_PATH
        if not os.access(self.path.parent, os.W_OK):
            return "but you have no permission to write here"
        return "free some space or correct the permissions and try again"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into errors that name the remedy."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "full" in text or "readonly" in text or "unable to open" in text or "disk I/O" in text:
                raise NotWritable(
                    "%s: %s; nothing was lost, %s" % (self.path, text, self._remedy())
                ) from error
            if "locked" in text:
                raise JournalHeld(
                    "%s: another process has kept it locked for %d s" % (self.path, BUSY)
                ) from error
            raise JournalDamaged(describe_damage(self.path, text)) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise JournalDamaged(describe_damage(self.path, str(error))) from error
