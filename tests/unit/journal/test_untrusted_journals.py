"""A journal that another user could have changed is read without acting on anything in it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import JournalDamaged, NotWritable
from outlast.journal import private_copy
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank
from support.journals import SPEC, added, ended, intended, writer

MAGIC = bytes.fromhex("d9d505f920a163d7")
OWNER, READER = 4711, 4712


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Yield a journal in a directory that others may write to."""
    folder = tmp_path / "shared"
    folder.mkdir()
    path = folder / "journal.sqlite"
    journal = writer(path)
    journal.add_spec(SPEC)
    journal.append([added("a"), added("b", 1), intended("a", "t1")])
    journal.close()
    folder.chmod(0o777)
    yield path
    shutil.rmtree(folder, ignore_errors=True)


def naming(victim: Path, pages: int) -> bytes:
    """Return a hot rollback journal that names `victim` as its super-journal: SQLite deletes that file."""
    header = MAGIC + struct.pack(">5I", 0, 1, pages, 512, 4096)
    name = os.fsencode(victim)
    record = struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name))
    return header.ljust(512, b"\0") + record + MAGIC


def plant(path: Path, victim: Path) -> Path:
    """Put a rollback journal that names `victim` beside the journal, which becomes one without a WAL."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    database.close()
    planted = Path(str(path) + "-journal")
    planted.write_bytes(naming(victim, path.stat().st_size // 4096))
    return planted


def change(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


def edit_schema(path: Path, name: str, sql: str) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA writable_schema=ON")
    database.execute("UPDATE sqlite_master SET sql=? WHERE name=?", (sql, name))
    database.commit()
    database.close()


def test_sqlite_itself_would_delete_the_file_that_a_planted_journal_names(path: Path, tmp_path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    victim = tmp_path / "thesis.tex"
    victim.write_text("years of work")
    plant(path, victim)
    change(path, "SELECT 1 FROM sqlite_master")
    assert not victim.exists()


def test_reading_a_journal_in_a_directory_of_others_deletes_no_file_that_it_names(
    path: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "thesis.tex"
    victim.write_text("years of work")
    planted = plant(path, victim)
    before = planted.read_bytes(), path.read_bytes()
    assert not is_blank(path)
    journal = Journal(path)
    assert journal.names() == ["a", "b"]
    journal.close()
    assert victim.read_text() == "years of work"
    assert (planted.read_bytes(), path.read_bytes()) == before


@pytest.mark.parametrize("mode", [0o755, 0o777], ids=["private", "shared"])
def test_a_journal_is_not_opened_for_writing_beside_a_rollback_journal_that_names_another_file(
    path: Path, tmp_path: Path, mode: int
) -> None:
    victim = tmp_path / "thesis.tex"
    victim.write_text("years of work")
    planted = plant(path, victim)
    path.parent.chmod(mode)
    with pytest.raises(JournalDamaged, match="names another file"):
        Journal(path, create=True)
    assert victim.exists() and planted.exists()


TWO_USERS = """
import codecs, os, sys, tempfile
from pathlib import Path
from outlast.errors import OutlastError
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank
path = Path(sys.argv[1])
codecs.lookup("unicode_escape")  # the interpreter's files may be out of reach of other users
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    print(is_blank(path))
    print(Journal(path, create=len(sys.argv) > 3).names())
except OutlastError as error:
    print(error)
"""


def as_user(user: int, path: Path, *more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", TWO_USERS, str(path), str(user), *more],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def public(path: Path) -> Iterator[Path]:
    """Yield a directory that all users can reach, with a copy of the journal in `owner/`."""
    place = Path(tempfile.mkdtemp(prefix="ol-users-"))
    place.chmod(0o777)
    (place / "owner").mkdir()
    shutil.copyfile(path, place / "owner" / "journal.sqlite")
    yield place
    shutil.rmtree(place)


def give_to(user: int, *paths: Path) -> None:
    if os.geteuid() == 0:  # else all users are this one, and the directory is open to all
        for path in paths:
            os.chown(path, user, user)
    else:
        paths[0].chmod(0o777)


def test_reading_the_journal_of_another_user_deletes_no_file_of_the_reader(public: Path) -> None:
    path = public / "owner" / "journal.sqlite"
    victim = public / "thesis.tex"
    victim.write_text("years of work")
    give_to(READER, victim)
    victim.chmod(0o600)
    planted = plant(path, victim)
    path.chmod(0o666)
    planted.chmod(0o666)
    give_to(OWNER, path.parent, path, planted)
    path.parent.chmod(0o777)
    assert as_user(READER, path) == "False\n['a', 'b']\n"
    assert as_user(0, path) == "False\n['a', 'b']\n", "root is another user as well"
    assert victim.read_text() == "years of work" and planted.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize("user", [READER, 0], ids=["user", "root"])
def test_the_journal_of_another_user_is_not_opened_for_writing(public: Path, user: int) -> None:
    path = public / "owner" / "journal.sqlite"
    path.chmod(0o666)
    give_to(OWNER, path.parent, path)
    path.parent.chmod(0o777)
    before = path.read_bytes()
    assert "belongs to user %d" % OWNER in as_user(user, path, "write")
    assert path.read_bytes() == before
    assert as_user(OWNER, path, "write") == "False\n['a', 'b']\n"


def test_changes_in_a_wal_and_changes_that_a_killed_writer_left_are_read_as_sqlite_would(path: Path) -> None:
    journal = writer(path)
    journal.append([added("c", 2)])
    reader = Journal(path)
    assert reader.names() == ["a", "b", "c"], "its writer has not copied the WAL into the file"
    reader.close()
    journal.close()
    change(path, "PRAGMA journal_mode=DELETE")
    # Half of a transaction is in the file; the rollback journal undoes it.
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA cache_size=1; PRAGMA synchronous=FULL; BEGIN")
    for number in range(500):
        database.execute(
            "INSERT INTO runs VALUES (?, ?, 'waiting', ?)", ("new-%d" % number, 10 + number, "{}" * 200)
        )
    kept = path.parent / "kept"
    kept.mkdir()
    for suffix in ("", "-journal"):
        shutil.copyfile(str(path) + suffix, kept / ("journal.sqlite" + suffix))
    database.execute("ROLLBACK")
    database.close()
    kept.chmod(0o777)
    reader = Journal(kept / "journal.sqlite")
    assert reader.names() == ["a", "b", "c"]
    reader.close()


HARMFUL = {
    "view": ["DROP TABLE requests", "CREATE VIEW requests AS SELECT name, 1 AS at FROM runs"],
    "trigger": ["CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM entries; END"],
    "index": ["CREATE INDEX more ON runs (upper(name))"],
    "table": ["CREATE TABLE more (x)"],
}


@pytest.mark.parametrize("statements", HARMFUL.values(), ids=HARMFUL)
def test_a_schema_that_outlast_does_not_make_is_refused(path: Path, statements: list[str]) -> None:
    change(path, *statements)
    with pytest.raises(JournalDamaged, match="not made by Outlast"):
        Journal(path)


def test_a_changed_definition_of_a_table_is_refused(path: Path) -> None:
    columns = "name TEXT PRIMARY KEY, at REAL NOT NULL CHECK (randomblob(1e9) IS NOT NULL)"
    edit_schema(path, "requests", "CREATE TABLE requests (%s) WITHOUT ROWID" % columns)
    with pytest.raises(JournalDamaged, match="not made by Outlast"):
        Journal(path)


def test_a_query_that_does_not_end_is_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_copy, "MOST_STEPS", 10_000)
    journal = writer(path)
    journal.append([added("r%d" % number, 10 + number) for number in range(3000)])
    journal.close()
    with pytest.raises(JournalDamaged, match="too long"):
        list(Journal(path).entries())


def test_a_journal_beyond_the_limit_is_not_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_copy, "MOST_BYTES", 8192)
    with pytest.raises(JournalDamaged, match="more than 8192 bytes"):
        Journal(path)


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_journal_that_is_no_regular_file_is_refused(
    path: Path, tmp_path: Path, kind: str, suffix: str
) -> None:
    place = Path(str(path) + suffix)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        (tmp_path / "secret").write_bytes(b"x" * 100)
        place.symlink_to(tmp_path / "secret")
    with pytest.raises(JournalDamaged):
        Journal(path)
    assert (tmp_path / "secret").exists() is (kind == "link")


def test_nothing_can_be_written_through_a_journal_of_others(path: Path) -> None:
    journal = Journal(path)
    for statement in ("DELETE FROM runs", "ATTACH '/tmp/x' AS x", "PRAGMA writable_schema=ON", "VACUUM"):
        with pytest.raises(sqlite3.DatabaseError):
            journal._db.execute(statement)
    with pytest.raises((JournalDamaged, NotWritable)):
        journal.acquire_lease(1, {})
    journal.close()


def test_the_private_copy_is_not_left_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    journal = Journal(path)
    assert journal.names() == ["a", "b"] and not list((tmp_path / "temporary").iterdir())
    journal.close()
    path.write_bytes(b"no journal at all" * 1000)
    with pytest.raises(JournalDamaged):
        Journal(path)
    assert not list((tmp_path / "temporary").iterdir())


def test_text_of_another_user_cannot_control_the_terminal_or_add_lines(path: Path) -> None:
    journal = writer(path)
    journal.append([ended("a", "t1", "crashed")])
    record = json.loads(journal._db.execute("SELECT record FROM runs WHERE name='a'").fetchone()[0])
    record["reason"] = "x\x1b]0;owned\x07\nall is well\u202e"
    journal._db.execute("UPDATE runs SET record=? WHERE name='a'", (json.dumps(record),))
    journal._db.execute("UPDATE runs SET name='b\x1b[2J' WHERE name='b'")
    journal.close()
    reader = Journal(path)
    run = reader.run("a")
    assert run is not None and run.reason == "x\ufffd]0;owned\ufffd\ufffdall is well\ufffd"
    assert reader.names() == ["a", "b\ufffd[2J"]
    reader.close()


@pytest.mark.parametrize(
    "record",
    [
        "[" * 100_000,
        '{"state": "%s"}' % ("9" * 10_000),
        "[]",
        "7",
        '{"state": 1' + "0" * 10_000 + "}",
        "\x00",
    ],
    ids=["nesting", "state", "list", "number", "digits", "no JSON"],
)
def test_a_record_that_cannot_be_used_is_damage_and_no_bug(path: Path, record: str) -> None:
    for table in ("runs", "attempts", "specs"):
        change(path, "UPDATE %s SET record='%s'" % (table, record.replace("\x00", "nul")))
    change(path, "UPDATE entries SET data='[%s'" % record.replace("\x00", "nul"))
    journal = Journal(path)
    for read in (
        lambda: list(journal.runs()),
        lambda: list(journal.attempts()),
        lambda: journal.spec(1),
        journal.live,
        lambda: list(journal.entries()),
    ):
        with pytest.raises(JournalDamaged):
            read()
    journal.close()


@pytest.mark.parametrize("holder", ["[]", "{}", '{"host": 1}', '{"host": "h", "pid": "x"}', "nothing"])
def test_a_lease_that_makes_no_sense_has_no_holder(path: Path, holder: str) -> None:
    from outlast.journal.lease import living_holder

    change(path, "UPDATE lease SET holder='%s'" % holder)
    journal = Journal(path)
    assert living_holder(journal) == {}
    journal.close()


def test_a_refreshed_reader_sees_what_was_written_since(path: Path) -> None:
    reader = Journal(path)
    journal = writer(path)
    journal.append([added("c", 2)])
    reader.refresh()
    assert reader.names() == ["a", "b", "c"]
    reader.refresh()
    assert reader.names() == ["a", "b", "c"]
    reader.close()
    journal.close()


def test_a_link_of_ones_own_to_the_journal_is_followed(tmp_path: Path) -> None:
    (tmp_path / "fast").mkdir()
    journal = writer(tmp_path / "fast" / "journal.sqlite")
    journal.append([added("a")])
    journal.close()
    (tmp_path / "journal.sqlite").symlink_to("fast/journal.sqlite")
    tmp_path.chmod(0o700)
    reader = Journal(tmp_path / "journal.sqlite")
    assert reader.names() == ["a"]
    reader.close()
