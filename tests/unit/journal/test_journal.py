"""The journal is durable, equals the fold of its entries, has one writer, and reports damage clearly."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.domain.fold import ImpossibleStep, apply
from outlast.domain.model import (
    ATTEMPT_KINDS,
    Attempt,
    AttemptState,
    Cause,
    EntryKind,
    JournalEntry,
    Run,
)
from outlast.errors import JournalDamaged, JournalHeld, NotWritable
from outlast.journal import sqlite_file
from outlast.journal.codec import dump, read_attempt
from outlast.journal.journal import Journal
from outlast.simulation import carry_out, draw_scenario
from support.journals import SPEC, added, ended, intended, writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = writer(path)
    yield journal
    journal.close()


def folded(journal: Journal) -> tuple[dict[str, Run], dict[str, Attempt]]:
    runs: dict[str, Run] = {}
    attempts: dict[str, Attempt] = {}
    for row in journal.entries():
        token = row.entry.token if row.entry.kind in ATTEMPT_KINDS else None
        run, attempt = apply(runs.get(row.entry.run), attempts.get(token or ""), row.entry)
        runs[run.name] = run
        if attempt is not None:
            attempts[attempt.token] = attempt
    return runs, attempts


def test_appended_entries_are_there_after_opening_again(journal: Journal, path: Path) -> None:
    number = journal.add_spec(SPEC)
    journal.append([added("a"), added("b", 1), intended("a", "t1")])
    journal.append([JournalEntry(2.5, "a", EntryKind.QUEUED, "t1", {"job": "17"})])
    journal.close()
    again = Journal(path)
    assert list(again.live()) == again.names() == ["a", "b"]
    run = again.run("a")
    assert run is not None and run.params == {"lr": "1e-3"}
    current = again.current(again.live()["a"])
    assert current is not None and (current.job, current.avoid) == ("17", ("bad",))
    assert again.spec(number) == again.newest_spec() == SPEC
    assert again.counts() == {"waiting": 1, "active": 1}
    again.close()


def test_the_cause_of_an_end_is_there_after_opening_again(journal: Journal, path: Path) -> None:
    end = ended("a", "t1", "network")
    cancelled = {"outcome": "network", "reason": "held", "cause": "access-point"}
    journal.append(
        [added("a"), intended("a", "t1"), JournalEntry(3.0, "a", EntryKind.CANCEL_SENT, "t1", cancelled)]
    )
    journal.append([replace(end, data={**end.data, "cause": "unknown"})])
    again = Journal(path)
    runs, attempts = folded(again)
    assert list(again.runs()) == list(runs.values()) and list(again.attempts()) == list(attempts.values())
    assert attempts["t1"].cause is Cause.ACCESS_POINT
    assert runs["a"].last is not None and runs["a"].last.cause is Cause.UNKNOWN
    again.close()


def test_a_record_of_an_older_version_has_no_cause() -> None:
    attempt = Attempt("a", 1, "t1", AttemptState.QUEUED, 1.0)
    record = json.loads(dump(attempt))
    assert "cause" not in record
    assert read_attempt(json.dumps(record)) == attempt


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 5000))
def test_the_tables_are_the_fold_of_the_entries(tmp_path: Path, seed: int) -> None:
    """Use the entries of a simulated experiment, in which all kinds of entries occur."""
    history = carry_out(draw_scenario(seed))
    path = tmp_path / "journal.sqlite"
    path.unlink(missing_ok=True)
    journal = writer(path)
    journal.add_spec(history.scenario.spec)
    for entry in history.entries:
        journal.append([entry])
    journal.close()
    journal = Journal(path)
    runs, attempts = folded(journal)
    assert {run.name: run for run in journal.runs()} == runs == history.runs
    assert {attempt.token: attempt for attempt in journal.attempts()} == attempts == history.attempts
    journal.close()


def test_entries_appended_together_are_recorded_all_or_none(journal: Journal, path: Path) -> None:
    journal.append([added("a")])
    with pytest.raises(ImpossibleStep):
        journal.append([intended("a", "t1"), intended("a", "t2", 2)])
    reader = Journal(path)
    assert reader.last_entry() == 1 and list(reader.attempts()) == []
    journal.append([intended("a", "t1")])
    reader.close()


def test_a_request_and_its_entries_are_recorded_all_or_none(journal: Journal) -> None:
    with pytest.raises(ImpossibleStep):
        journal.record_request("1.json", 1.0, [added("a"), intended("a", "t1"), intended("a", "t2", 2)])
    assert not journal.has_request("1.json") and not journal.live() and journal.last_entry() == 0
    journal.record_request("1.json", 1.0, [added("a")])
    assert journal.has_request("1.json") and list(journal.live()) == ["a"]


def test_attempts_that_are_over_are_still_found(journal: Journal) -> None:
    journal.append([added("a"), intended("a", "t1"), ended("a", "t1"), intended("a", "t2", 2)])
    journal.append([ended("a", "t2", "finished"), JournalEntry(4.0, "a", EntryKind.ACCEPTED, "t2")])
    journal.append([JournalEntry(5.0, "a", EntryKind.FINISHED, None, {"reason": "done"})])
    assert [attempt.token for attempt in journal.attempts("a")] == ["t1", "t2"]
    first = journal.attempt("t1")
    assert first is not None and first.account.tail == ("ü",)
    journal.append(
        [
            JournalEntry(6.0, "a", EntryKind.TWIN_FOUND, "t1"),
            JournalEntry(7.0, "a", EntryKind.TWIN_ENDED, "t1", {"slot": 2}),
        ]
    )
    first = journal.attempt("t1")
    assert first is not None and first.twin_slot == 2


# One writer.


def test_without_a_lease_nothing_is_written(path: Path) -> None:
    writer(path).close()
    reader = Journal(path)
    with pytest.raises(JournalHeld):
        reader.append([added("a")])
    assert reader.last_entry() == 0
    reader.close()


def test_a_holder_that_was_taken_over_can_never_write_again(journal: Journal, path: Path) -> None:
    journal.append([added("a")])
    successor = writer(path)
    for write in (
        lambda: journal.append([intended("a", "t1")]),
        lambda: journal.add_spec(SPEC),
        lambda: journal.renew_lease({}),
        lambda: journal.record_request("1.json", 1.0, []),
    ):
        with pytest.raises(JournalHeld, match="taken over"):
            write()
    assert successor.last_entry() == 1 and not successor.has_request("1.json")
    successor.append([intended("a", "t2")])
    successor.close()


def test_a_lease_is_acquired_by_one_of_those_that_saw_it_free(journal: Journal, path: Path) -> None:
    other = Journal(path)
    epoch, _ = journal.lease()
    assert other.acquire_lease(epoch, {"pid": 2})
    assert not journal.acquire_lease(epoch, {"pid": 3})
    assert journal.lease() == (epoch + 1, {"pid": 2})
    other.close()


def test_readers_see_whole_transactions_while_a_writer_writes(journal: Journal, path: Path) -> None:
    journal.append([added("a")])
    stop = threading.Event()
    torn: list[tuple[int, int]] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        reader = Journal(path)
        while not stop.is_set() or not reads:
            runs, attempts = folded(reader)
            if set(runs) - {"a"} != {attempt.run for attempt in attempts.values()}:
                torn.append((len(runs), len(attempts)))
            reads += 1
        reader.close()

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(60):
        journal.append([added("r%d" % number, number + 1), intended("r%d" % number, "t%d" % number)])
    stop.set()
    thread.join(60.0)
    assert not thread.is_alive() and reads and not torn


# Damage.


def test_a_missing_journal_is_not_created_by_reading(path: Path) -> None:
    with pytest.raises(JournalDamaged, match="nothing has been submitted"):
        Journal(path)
    assert not path.exists()


def test_a_journal_that_appears_while_it_is_looked_for_is_not_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(file: Path) -> None:
        file.touch()
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite_file, "open_to_read", too_early)
    assert sqlite_file.is_blank(path)


@pytest.mark.parametrize(
    "content", [b"", b"params: 1\n" * 500, b"\x00" * 8192], ids=["empty", "text", "zeros"]
)
def test_the_error_for_a_file_that_is_no_journal_names_it(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=str(path)):
        Journal(path)
    assert path.read_bytes() == content


def test_the_error_for_another_format_names_it(journal: Journal, path: Path) -> None:
    journal._db.execute("UPDATE about SET value='99' WHERE key='format'")
    journal.close()
    with pytest.raises(JournalDamaged, match="format 99"):
        Journal(path)


def filled(path: Path) -> int:
    """Write a journal of some pages in one file, and return its size."""
    journal = writer(path)
    journal.append([added("r%d" % number, number) for number in range(300)])
    journal.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path.stat().st_size


def test_a_truncated_journal_is_damaged_wherever_it_was_cut(path: Path, tmp_path: Path) -> None:
    size = filled(path)
    cut = tmp_path / "cut.sqlite"
    for length in range(4096, size, 4096 * 5):
        for suffix in ("-wal", "-shm"):
            Path(str(cut) + suffix).unlink(missing_ok=True)
        cut.write_bytes(path.read_bytes()[:length])
        with pytest.raises(JournalDamaged, match="submit again"):
            reader = Journal(cut)
            try:
                reader.check()
            finally:
                reader.close()


def test_a_corrupt_page_is_found_and_the_file_is_left_alone(path: Path) -> None:
    size = filled(path)
    content = bytearray(path.read_bytes())
    content[8192 : size - 4096] = b"\xa5" * (size - 12288)
    path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=str(path)):
        Journal(path).check()
    with pytest.raises(JournalDamaged, match=str(path)):
        list(Journal(path).runs())
    assert path.read_bytes() == content


READ_ONLY = """
import os, sys
from pathlib import Path
from outlast.errors import NotWritable
from outlast.journal.journal import Journal
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Journal(Path(sys.argv[1]) / "journal.sqlite", create=True)
except NotWritable as error:
    print(error)
"""


def test_the_error_for_a_directory_without_write_permission_names_it() -> None:
    """Root may write anywhere, so the process changes its user first."""
    place = Path(tempfile.mkdtemp(prefix="ol-read-only-"))
    try:
        place.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(place)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        shutil.rmtree(place)
    assert str(place) in done.stdout and "no permission to write" in done.stdout, done.stderr


def test_a_full_disk_loses_nothing_and_the_journal_works_again_once_there_is_space(
    journal: Journal, path: Path
) -> None:
    """Simulate the disk by a limit on the size of files: the kernel refuses the write in the same way."""
    journal.append([added("a")])
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    wal = Path(str(path) + "-wal")
    many = [added("r%d" % number, number) for number in range(2000)]
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(path.stat().st_size, wal.stat().st_size), usual[1]))
        with pytest.raises(NotWritable, match="free some space"):
            journal.append(many)
        with pytest.raises(NotWritable, match="free some space"):
            journal.record_request("1.json", 1.0, many)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(journal.live()) == ["a"] and not journal.has_request("1.json")
    journal.append([intended("a", "t1")])
    journal.close()
    again = Journal(path)
    again.check()
    assert again.last_entry() == 2 and list(again.live()) == ["a"]
    again.close()


def test_every_commit_reaches_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", create=True)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,), "2 is FULL"
    journal.close()


def test_a_journal_that_was_moved_away_or_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, create=True)
    journal.check_location()
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(JournalDamaged, match="moved, removed or replaced"):
        journal.check_location()
    path.write_bytes(b"")
    with pytest.raises(JournalDamaged, match="moved, removed or replaced"):
        journal.check_location()
    journal.close()
