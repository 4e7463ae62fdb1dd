"""`up` waits for a journal that cannot be written for a while, and loses and doubles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.controller import supervisor
from outlast.controller.supervisor import control
from outlast.errors import JournalHeld, JournalUnavailable, NotWritable
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from support.experiments import Lab, assert_whole

#: Every third write fails before its commit, as if the disk did not respond.
FAILING = """
import sqlite3
from outlast.controller import supervisor
from outlast.journal.journal import Journal
supervisor.FIRST_PAUSE = 0.01
persist, writes = Journal._persist, [0]
def fail(self, *changes):
    with self._transaction():
        persist(self, *changes)
        writes[0] += 1
        if writes[0] %% 3 == 0:
            raise sqlite3.OperationalError(%r)
Journal._persist = fail
"""


@pytest.mark.parametrize(
    "error",
    [
        "disk I/O error",
        "database or disk is full",
        "attempt to write a readonly database",
        "database is locked",
    ],
)
def test_up_continues_once_the_journal_can_be_written_again(lab: Lab, error: str) -> None:
    directory = lab.experiment("x", command="sh train.sh {kind}", sweep={"kind": ["plain", "fluke"]})
    assert lab.outlast("submit", directory).returncode == 0
    done = lab.outlast("up", directory, prelude=FAILING % error)
    assert done.returncode == 0, done.output
    assert "next try in" in done.stdout and "it can be written again" in done.stdout
    assert_whole(
        directory, lab.scheduler(directory), {"x-kind=plain": "finished", "x-kind=fluke": "finished"}
    )


def unwritable(path: Path) -> JournalUnavailable:
    return JournalUnavailable("%s: disk I/O error" % path)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


def test_a_journal_that_stays_unwritable_ends_up_with_the_error(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(supervisor, "LONGEST_OUTAGE", 0.2)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.01)
    with control(experiment, "up") as session:
        error = unwritable(experiment.journal)

        def fail(self: Journal) -> None:
            raise error

        monkeypatch.setattr(Journal, "reopen", fail)
        with pytest.raises(NotWritable, match="disk I/O error"):
            session.recover(error, messages.append)
    assert len(messages) >= 2 and all("next try in" in message for message in messages)


def test_an_outage_that_returns_before_a_pass_is_complete_is_the_same_outage(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_OUTAGE", 0.2)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.01)
    with control(experiment, "up") as session:
        error = unwritable(experiment.journal)
        with pytest.raises(NotWritable):
            for _ in range(1000):
                session.recover(error, lambda message: None)
        session.step()
        session.recover(error, lambda message: None)


def test_a_controller_that_was_taken_over_meanwhile_does_not_continue(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.01)
    with control(experiment, "up") as session:
        other = Journal(experiment.journal, create=True)
        epoch, _ = other.lease()
        assert other.acquire_lease(epoch, {})
        other.close()
        with pytest.raises(JournalHeld, match="taken over"):
            session.recover(unwritable(experiment.journal), lambda message: None)
