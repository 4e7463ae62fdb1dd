"""Entries are applied in memory, all or none."""

from __future__ import annotations

import pytest

from outlast.domain.fold import ImpossibleStep
from outlast.domain.model import EntryKind, JournalEntry, Spec
from outlast.journal.records import Records


def added(name: str) -> JournalEntry:
    return JournalEntry(1.0, name, EntryKind.ADDED, None, {"position": 0, "spec": 1})


def intended(name: str, token: str, number: int = 1) -> JournalEntry:
    return JournalEntry(2.0, name, EntryKind.INTENDED, token, {"number": number})


def ended(name: str, token: str) -> JournalEntry:
    return JournalEntry(3.0, name, EntryKind.ENDED, token, {"outcome": "finished", "detail": "done"})


def test_entries_appended_together_build_on_each_other() -> None:
    records = Records()
    records.append([added("a"), intended("a", "t1")])
    run = records.live()["a"]
    current = records.current(run)
    assert current is not None and current.token == "t1"


def test_one_impossible_entry_makes_the_whole_append_fail() -> None:
    records = Records()
    with pytest.raises(ImpossibleStep):
        records.append([added("a"), intended("a", "t1"), intended("a", "t2", 2)])
    assert not records.live() and records.attempt("t1") is None


def test_entries_that_could_not_be_made_durable_are_not_applied() -> None:
    class FullDisk(Records):
        def _persist(self, *arguments: object) -> None:
            raise OSError("no space")

    records = FullDisk()
    with pytest.raises(OSError, match="no space"):
        records.append([added("a")])
    assert not records.live()


def test_a_run_that_is_over_is_no_longer_live() -> None:
    records = Records()
    records.append([added("a"), added("b"), intended("a", "t1"), ended("a", "t1")])
    records.append(
        [
            JournalEntry(4.0, "a", EntryKind.ACCEPTED, "t1"),
            JournalEntry(4.0, "a", EntryKind.FINISHED, None, {}),
        ]
    )
    assert list(records.live()) == ["b"]


def test_the_same_spec_is_kept_once_and_the_newest_is_known() -> None:
    records = Records()
    assert records.newest_spec() is None
    first, second = Spec("a", "x"), Spec("a", "y")
    assert [records.add_spec(spec) for spec in (first, second, first)] == [1, 2, 1]
    assert records.spec(1) == first and records.newest_spec() == second
