"""Finding the experiment and the run that a user names, and text that is safe to print."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from outlast.cli import common
from outlast.cli.common import (
    check_selection,
    experiment_at,
    locate,
    locate_all,
    show_argument,
    table,
    wrap_line,
)
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.journal.sqlite_file import LONGEST_PATH
from outlast.text import printable


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Experiments `a` and `b`; `a` contains a directory with the name of a run."""
    for name in ("a", "b", "a/b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "params.yaml").write_text("command: 'true'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_with_c_an_argument_is_a_run_name_even_if_a_directory_has_that_name(two: Path) -> None:
    assert locate("a", Path("b")) == (Experiment(two / "b"), "a")


def test_inside_an_experiment_an_argument_is_a_run_name(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two / "a")
    assert locate("b", Path()) == (Experiment(two / "a"), "b")


def test_outside_an_experiment_a_directory_is_an_experiment_and_a_path_names_its_run(two: Path) -> None:
    assert locate("a", Path()) == (Experiment(two / "a"), None)
    assert locate("b/lr=1e-3", Path()) == (Experiment(two / "b"), "lr=1e-3")
    assert locate(str(two / "b"), Path()) == (Experiment(two / "b"), None)


def test_a_run_is_named_by_its_path_from_anywhere_and_also_beside_c(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in ("b", "."):
        assert locate("b/lr=1e-3", Path(directory)) == (Experiment(two / "b"), "lr=1e-3")
    monkeypatch.chdir(two / "a")
    experiment, run = locate("../b/lr=1e-3", Path())
    assert (experiment.root.resolve(), run) == (two / "b", "lr=1e-3")
    assert locate("./lr=1e-3", Path()) == (Experiment(two / "a"), "lr=1e-3")
    (two / "b" / "params.yaml").rename(two / "b" / "journal.sqlite")
    experiment, run = locate("../b/lr=1e-3", Path())
    assert (experiment.root.resolve(), run) == (two / "b", "lr=1e-3")


def test_runs_of_two_experiments_in_one_command_are_refused(two: Path) -> None:
    assert locate_all(["b/x", "b/y"], Path()).root == two / "b"
    assert locate_all([], Path("a")).root == two / "a"
    with pytest.raises(BadInput, match="one experiment at a time"):
        locate_all(["a/x", "b/y"], Path())


def test_an_option_for_all_runs_takes_an_experiment_but_no_run(two: Path) -> None:
    check_selection(["b"], Path(), "cancel", "--all")
    check_selection([], Path("b"), "cancel", "--all")
    with pytest.raises(BadInput, match="name the runs to cancel or use --all, not both"):
        check_selection(["b/x"], Path(), "cancel", "--all")


def test_a_directory_that_is_no_experiment_is_refused_with_what_to_type(two: Path) -> None:
    (two / "file").touch()
    for directory, message in (
        ("file", "not a directory"),
        ("none", "outlast init none"),
        (".", "no params.yaml"),
    ):
        with pytest.raises(BadInput, match=message):
            experiment_at(Path(directory))
    with pytest.raises(BadInput, match="too long"):
        experiment_at(Path("/" + "/".join(["x" * 100] * (LONGEST_PATH // 100))))


def test_a_copy_is_another_experiment_and_a_link_is_the_same(two: Path) -> None:
    assert Experiment(two / "a").identity != Experiment(two / "b").identity
    (two / "link").symlink_to(two / "a")
    assert Experiment(two / "link").identity == Experiment(two / "a").identity


def test_a_directory_in_a_command_to_type_is_quoted() -> None:
    assert (show_argument(Path()), show_argument(Path("a b"))) == ("", " 'a b'")


def test_control_characters_are_not_printed() -> None:
    assert printable("\x1b[2J\x1b]0;evil\x07\x9b5m\tlöss=0.1") == "�[2J�]0;evil��5m\tlöss=0.1"


# Narrow terminals

REASON = "the same failure twice: the training exited with 3; its last line: boom"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")


@pytest.mark.usefixtures("terminal")
def test_a_long_text_in_the_last_column_is_wrapped_in_its_column_or_below_its_row() -> None:
    beside = click.unstyle(table(("RUN", "DETAIL"), [("r" * 20, REASON)], most_lines=3))
    assert beside.splitlines()[1:] == [
        "r" * 20 + "  the same failure twice: the training",
        " " * 22 + "exited with 3; its last line: boom",
    ]
    below = click.unstyle(table(("RUN", "DETAIL"), [("r" * 50, REASON), ("s", "fine")], most_lines=3))
    assert below.splitlines()[1:] == [
        "r" * 50,
        "    the same failure twice: the training exited with 3; its",
        "    last line: boom",
        "s" + " " * 51 + "fine",
    ]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("name", ["r", "r" * 50])
def test_a_text_of_too_many_lines_ends_in_an_ellipsis(name: str) -> None:
    lines = click.unstyle(table(("RUN", "DETAIL"), [(name, REASON * 9)], most_lines=3)).splitlines()
    assert lines[-1].endswith("…") and sum("…" in line for line in lines) == 1
    assert max(map(len, lines)) <= 60


@pytest.mark.usefixtures("terminal")
def test_a_wrapped_line_is_indented_and_splits_no_word() -> None:
    assert wrap_line("  why        " + REASON, 13).splitlines() == [
        "  why        the same failure twice: the training exited",
        "             with 3; its last line: boom",
    ]
    assert wrap_line("x" * 100, 4) == "x" * 100


def test_nothing_is_wrapped_or_cut_outside_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert wrap_line(REASON, 4) == REASON
    assert REASON in table(("RUN", "DETAIL"), [("r" * 50, REASON)], most_lines=3)
