"""The format of a journal: its tables, its number, and the version of Outlast that wrote it.

A journal of a newer format is not opened; one of an older format becomes one of this format when a controller
acquires its lease. The number changes with each release that writes what the one before cannot read. The
newest version that wrote is in the journal, to be named in errors.
"""

from __future__ import annotations

import re
import sqlite3

from outlast import __version__

FORMAT = 2
#: Format 1 (until 0.2.0) has the same tables; runs and attempts have fewer fields.
READABLE = ("1", "2")

SCHEMA = """
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


def has_tables(db: sqlite3.Connection) -> bool:
    """Return True if the file is not empty."""
    return db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables in an empty file, in the current transaction."""
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            db.execute(statement)
    db.execute("INSERT INTO about VALUES ('format', ?)", (str(FORMAT),))


def error_of_format(db: sqlite3.Connection) -> str:
    """Return why this version cannot read the journal; empty if it can."""
    found = _about(db, "format")
    if found in READABLE:
        return ""
    if found.isdecimal() and int(found[:9]) > FORMAT:
        text = "the journal has format %s, but Outlast %s reads format %d. Nothing was changed. %s"
        return text % (found[:9], __version__, FORMAT, _upgrade(_about(db, "version")))
    return "the journal has format %s; this version of Outlast reads format %d" % (found[:9] or "?", FORMAT)


def error_of_record(db: sqlite3.Connection) -> str:
    """Return why this version may not know a record; empty if no newer one has written to the journal."""
    version = _about(db, "version")
    if _numbers(version) <= _numbers(__version__):
        return ""
    text = "Outlast %s has written to this journal, and Outlast %s cannot read all of it. %s"
    return text % (version[:20], __version__, _upgrade(version))


def note_writer(db: sqlite3.Connection) -> None:
    """Store the format, and the version of Outlast that writes, unless a newer one has written."""
    db.execute("UPDATE about SET value=? WHERE key='format'", (str(FORMAT),))
    if _numbers(_about(db, "version")) < _numbers(__version__):
        db.execute("INSERT OR REPLACE INTO about VALUES ('version', ?)", (__version__,))


def _upgrade(version: str) -> str:
    return "Upgrade to Outlast %s or later" % version[:20] if version else "Upgrade Outlast"


def _about(db: sqlite3.Connection, key: str) -> str:
    row = db.execute("SELECT value FROM about WHERE key=?", (key,)).fetchone()
    return str(row[0]) if row else ""


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found.group().split("."))) if found else ()
