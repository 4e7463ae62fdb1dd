"""The experiment of another user can be read, not changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.cli import group
from outlast.domain.model import EntryKind, JournalEntry, Spec
from outlast.errors import NotWritable
from outlast.journal import ownership
from support.journals import added, intended, writer


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an experiment that another user owns, as far as Outlast can see."""
    (tmp_path / "params.yaml").write_text("name: x\ncommand: 'true'\nruns: 3\n")
    journal = writer(tmp_path / "journal.sqlite")
    journal.add_spec(Spec("x", "true"))
    journal.append([added("a"), added("b", 1), intended("a", "t1")])
    journal.append([JournalEntry(2.0, "b", EntryKind.FAILED, None, {"reason": "it crashed"})])
    journal.close()
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    monkeypatch.setattr(ownership, "_makes_files_of", lambda directory, user: False)
    return tmp_path


@pytest.mark.parametrize("command", ["submit", "run", "up", "tick", "cancel", "retry"])
def test_a_command_that_changes_an_experiment_is_refused_and_writes_nothing(
    directory: Path, command: str
) -> None:
    before = {path: path.read_bytes() for path in directory.iterdir()}
    where = {"cancel": ["--all", "-C"], "retry": ["b", "-C"]}.get(command, [])
    done = CliRunner().invoke(group, [command, *where, str(directory)])
    assert isinstance(done.exception, NotWritable), done.output
    assert "belongs to user" in str(done.exception)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["report"], ["explain", "a", "-C"]])
def test_a_command_that_reads_works(directory: Path, command: list[str]) -> None:
    done = CliRunner().invoke(group, [*command, str(directory)])
    assert done.exit_code == 0, done.output


def test_the_journal_on_a_file_system_that_gives_all_files_to_one_user_can_be_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_makes_files_of", lambda directory, user: True)
    ownership.check_owner(directory / "journal.sqlite")
