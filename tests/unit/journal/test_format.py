"""Journals of earlier versions are read, and those of later versions are refused with the version needed."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path

import pytest

from outlast import __version__
from outlast.domain.model import AttemptState, EntryKind, JournalEntry, Outcome, OutputRule, Spec
from outlast.errors import JournalDamaged
from outlast.journal import format as journal_format
from outlast.journal.codec import dump, read_attempt, read_run
from outlast.journal.journal import Journal

SAMPLES = Path(__file__).parent / "samples"


def restore(sample: str, path: Path) -> Path:
    """Make the journal that `sample` describes, as SQL text."""
    database = sqlite3.connect(path)
    database.executescript((SAMPLES / sample).read_text(encoding="utf-8"))
    database.close()
    return path


def change(path: Path, statement: str, *values: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement, values)
    database.commit()
    database.close()


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("*.sql")))
def test_a_journal_of_this_or_an_earlier_version_is_read_and_continued(sample: str, tmp_path: Path) -> None:
    path = restore(sample, tmp_path / "journal.sqlite")
    reader = Journal(path)
    assert [(run.name, run.state.value, run.attempts) for run in reader.runs()] == [
        ("a", "active", 2),
        ("b", "failed", 0),
        ("c", "cancelled", 0),
    ]
    first, second = reader.attempts("a")
    assert (first.outcome, first.account.slot, first.account.saved_step) == (Outcome.EVICTED, 60.0, 7)
    assert first.account.data[0].troubles["stalled"].count == 1
    assert (second.state, second.job, second.waits) == (AttemptState.QUEUED, "18", "Priority")
    assert reader.spec(1).command == "python train.py --lr {lr}" and len(list(reader.entries())) == 13
    reader.close()
    writer = Journal(path, create=True)
    epoch, holder = writer.lease()
    assert epoch == 1 and holder["purpose"] == "up" and writer.acquire_lease(epoch, {})
    writer.close()
    database = sqlite3.connect(path)
    assert dict(database.execute("SELECT * FROM about")) == {"format": "2", "version": __version__}
    database.close()


def test_the_newest_sample_is_what_this_version_writes(tmp_path: Path) -> None:
    """If this fails, records are written otherwise: `python tests/unit/journal/test_format.py` writes
    `current.sql` anew.

    Keep the one of a release under the number of its version.
    """
    database = sqlite3.connect(restore("current.sql", tmp_path / "journal.sqlite"))
    records = {
        table: [record for (record,) in database.execute("SELECT record FROM %s" % table)]
        for table in ("runs", "attempts", "specs")
    }
    database.close()
    assert [dump(read_run(record)) for record in records["runs"]] == records["runs"]
    assert [dump(read_attempt(record)) for record in records["attempts"]] == records["attempts"]
    # What has a default may be left out; a new field of a spec is written always.
    assert json.loads(records["specs"][0]).keys() == json.loads(dump(Spec("a", "b"))).keys()


@pytest.mark.parametrize("create", [False, True], ids=["read", "write"])
def test_a_newer_format_is_refused_with_the_version_that_reads_it(tmp_path: Path, create: bool) -> None:
    path = restore("current.sql", tmp_path / "journal.sqlite")
    change(path, "UPDATE about SET value='3' WHERE key='format'")
    change(path, "UPDATE about SET value='7.8.9' WHERE key='version'")
    change(path, "CREATE TABLE novelties (x)")
    before = path.read_bytes()
    with pytest.raises(JournalDamaged, match=r"format 3.*Nothing was changed. Upgrade to Outlast 7\.8\.9"):
        Journal(path, create=create)
    assert path.read_bytes() == before


def test_a_newer_format_in_a_directory_of_others_is_refused_with_the_version_that_reads_it(
    tmp_path: Path,
) -> None:
    test_a_newer_format_is_refused_with_the_version_that_reads_it(tmp_path, create=False)
    tmp_path.chmod(0o777)
    with pytest.raises(JournalDamaged, match=r"Upgrade to Outlast 7\.8\.9"):
        Journal(tmp_path / "journal.sqlite")


NOVELTIES = {
    "entry": "UPDATE entries SET kind='teleported' WHERE number=1",
    "run": 'UPDATE runs SET record=replace(record, \'"name"\', \'"mood":1,"name"\')',
    "state of a run": "UPDATE runs SET state='dreaming' WHERE name='a'",
    "attempt": 'UPDATE attempts SET record=replace(record, \'"token"\', \'"mood":1,"token"\')',
    "outcome": "UPDATE attempts SET record=replace(record, '\"evicted\"', '\"beamed\"')",
    "spec": 'UPDATE specs SET record=replace(record, \'"name"\', \'"mood":1,"name"\')',
}


@pytest.mark.parametrize("statement", NOVELTIES.values(), ids=NOVELTIES)
def test_what_a_newer_version_wrote_and_this_one_does_not_know_names_that_version(
    tmp_path: Path, statement: str
) -> None:
    path = restore("current.sql", tmp_path / "journal.sqlite")
    change(path, statement)
    change(path, "UPDATE about SET value='7.8.9' WHERE key='version'")
    journal = Journal(path)
    with pytest.raises(JournalDamaged, match=r"Outlast 7\.8\.9 has written.*Upgrade to Outlast 7\.8\.9"):
        list(journal.runs()), list(journal.attempts()), list(journal.entries()), journal.spec(1)
        journal.counts()
    journal.close()


def test_a_version_that_writes_does_not_replace_the_name_of_a_newer_one(tmp_path: Path) -> None:
    path = restore("current.sql", tmp_path / "journal.sqlite")
    change(path, "UPDATE about SET value='7.8.9' WHERE key='version'")
    journal = Journal(path, create=True)
    assert journal.acquire_lease(1, {})
    journal.close()
    database = sqlite3.connect(path)
    assert journal_format.error_of_record(database).startswith("Outlast 7.8.9 has written")
    database.close()


def write_sample() -> None:
    """Write `current.sql`: a run between its second attempts, a failed one and a cancelled one."""
    path = Path(tempfile.mkdtemp()) / "journal.sqlite"
    journal = Journal(path, create=True)
    holder = {"host": "login1", "boot": "b", "pid": 7, "born": 9, "since": 1.0, "beat": 2.0, "purpose": "up"}
    assert journal.acquire_lease(0, holder)
    command = "python train.py --lr {lr}"
    outputs = (OutputRule("m.npz"),)
    spec = Spec("digits", command, ("train.py",), outputs=outputs, environment={"PATH": "/usr/bin"})
    number = journal.add_spec(spec)
    runs = {"a": {"lr": "1e-3"}, "b": {"lr": "1e-2"}, "c": {}}
    added = [
        JournalEntry(1.0, name, EntryKind.ADDED, None, {"position": index, "spec": number, "params": params})
        for index, (name, params) in enumerate(runs.items())
    ]
    journal.record_request("1-a.json", 1.0, added)
    item = {"name": "train.tar", "arrived": True, "seconds": 1.5, "bytes": 1000, "sources": ["c.example.org"],
            "troubles": {"stalled": {"count": 1, "bytes": 10, "seconds": 0.5}}}  # fmt: skip
    account = {
        "slot": 60.0, "spans": [["claim", 0.1], ["stage", 2.0], ["compute", 57.0]], "saves": [[30.0, 7]],
        "saved": {"times": 1, "seconds": 0.5, "slowest": 0.5}, "loaded": True, "notes": ["slow disk"],
        "tail": ["Traceback", "ValueError: x"], "data": [item],
    }  # fmt: skip
    end = {"outcome": "evicted", "detail": "evicted by the cluster", "started": 2.9, "ended": 62.9,
           "host": "node1", "step": 7, "changed": True, "computed": 1, "account": account}  # fmt: skip
    again = "attempt 1 ended as evicted; continue"
    for at, run, kind, token, data in (
        (2.0, "a", EntryKind.INTENDED, "t1", {"number": 1, "reason": "first attempt", "avoid": []}),
        (2.1, "a", EntryKind.QUEUED, "t1", {"job": "17"}),
        (3.0, "a", EntryKind.STARTED, "t1", {"host": "node1", "started": 2.9, "restarts": 0}),
        (63.0, "a", EntryKind.ENDED, "t1", end),
        (64.0, "a", EntryKind.INTENDED, "t2", {"number": 2, "reason": again, "avoid": ["node1"]}),
        (64.1, "a", EntryKind.QUEUED, "t2", {"job": "18"}),
        (65.0, "a", EntryKind.WAITS, "t2", {"reason": "Priority"}),
        (66.0, "b", EntryKind.FAILED, None, {"reason": "the scheduler refused the job"}),
        (67.0, "c", EntryKind.CANCEL_ASKED, None, {"reason": "cancelled by the user"}),
        (68.0, "c", EntryKind.CANCELLED, None, {"reason": "cancelled by the user"}),
    ):
        journal.append([JournalEntry(at, run, kind, token, data)])
    journal.close()
    database = sqlite3.connect(path)
    (SAMPLES / "current.sql").write_text("\n".join(database.iterdump()) + "\n", encoding="utf-8")
    database.close()


if __name__ == "__main__":
    write_sample()
