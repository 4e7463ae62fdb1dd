"""`outlast explain` shows the last attempts of a run; its JSON has all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.cli import group
from support.journals import SPEC, added, ended, intended, writer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return an experiment with a run of 25 attempts."""
    (tmp_path / "params.yaml").write_text("name: x\ncommand: 'true'\n")
    journal = writer(tmp_path / "journal.sqlite")
    journal.add_spec(SPEC)
    journal.append([added("a")])
    for number in range(1, 26):
        journal.append([intended("a", "t%d" % number, number), ended("a", "t%d" % number)])
    journal.close()
    return tmp_path


def explain(directory: Path, *options: str) -> str:
    done = CliRunner().invoke(group, ["explain", "a", "-C", str(directory), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_last_attempts_are_shown_and_how_many_are_left_out(directory: Path) -> None:
    text = explain(directory)
    assert "… 5 earlier attempts not shown; --all shows them" in text
    assert "attempt 5:" not in text and "attempt 6:" in text and "attempt 25:" in text


def test_all_attempts_are_shown_on_request(directory: Path) -> None:
    text = explain(directory, "--all")
    assert "attempt 1:" in text and "attempt 25:" in text and "not shown" not in text


def test_the_json_has_all_attempts(directory: Path) -> None:
    found = json.loads(explain(directory, "--json"))
    assert [attempt["number"] for attempt in found["attempts"]] == list(range(1, 26))
