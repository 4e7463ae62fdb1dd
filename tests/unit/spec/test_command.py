"""Commands are split as a shell splits them; placeholders are filled in afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.node.environment import resolve_python
from outlast.spec.command import arguments, placeholders, shell_operator, shell_variable
from outlast.spec.command_checks import command_mistakes, command_warnings


def test_a_value_with_spaces_and_quotes_stays_one_argument() -> None:
    assert arguments("train --title {title} -v", {"title": "it's a 'b c'"}) == (
        "train",
        "--title",
        "it's a 'b c'",
        "-v",
    )


def test_placeholders_inside_a_value_are_not_filled_in() -> None:
    assert arguments("x {a} {b}", {"a": "{b}", "b": "1"}) == ("x", "{b}", "1")


@pytest.mark.parametrize(
    ("written", "argument"),
    [
        ("{lr}", "1e-3"),
        ("--lr={lr}/{lr}", "--lr=1e-3/1e-3"),
        ("'{lr}'", "1e-3"),
        ("{{lr}}", "{lr}"),
        ("${lr}", "${lr}"),
        ('\'{"a": {"b": 1}}\'', '{"a": {"b": 1}}'),
        ("'{print $1}'", "{print $1}"),
        ("{}", "{}"),
        ("{0}", "{0}"),
    ],
)
def test_only_a_word_in_single_braces_is_filled_in(written: str, argument: str) -> None:
    assert arguments(f"x {written}", {"lr": "1e-3"}) == ("x", argument)


def test_a_backslash_at_the_end_of_a_line_joins_it_to_the_next() -> None:
    assert arguments("python train.py \\\n  --lr 1\n", {}) == ("python", "train.py", "--lr", "1")


def test_placeholders_are_named_once_in_their_order() -> None:
    assert placeholders("{b} {a} {b} ${c} {{d}}") == ["b", "a"]


@pytest.mark.parametrize(
    ("command", "operator"),
    [
        ("a | b", "|"),
        ("a || b", "||"),
        ("a && b", "&&"),
        ("a; b", ";"),
        ("a > log", ">"),
        ("a>>log", ">>"),
        ("a < in", "<"),
        ("a &", "&"),
        ("a $(date)", "$("),
        ("a `date`", "`"),
        ("a 2>&1", ">"),
        ("a\nb", "\n"),
        ("a '\\' | b", "|"),
    ],
)
def test_a_shell_operator_is_found(command: str, operator: str, tmp_path: Path) -> None:
    assert shell_operator(command) == operator
    assert len(command_mistakes(command, tmp_path)) == 1


@pytest.mark.parametrize(
    "command", ["a '|' \"&& ;\"", r"a \> b", "bash -c 'a | b\nc'", "a \\\n b\n", "a {lr}"]
)
def test_a_quoted_character_is_not_a_shell_operator(command: str) -> None:
    assert shell_operator(command) is None


def test_a_shell_variable_outside_single_quotes_is_found() -> None:
    assert shell_variable('solve "$SCRATCH/x"') == "$SCRATCH"
    assert shell_variable('solve "$OUTLAST_CHECKPOINT_DIR/x" --to=${OUTLAST_RUN}') is None, (
        "the job replaces it"
    )
    assert shell_variable("solve $OUTLAST_CHECKPOINTS/x") == "$OUTLAST_CHECKPOINTS"
    assert shell_variable('solve "a $OUTLAST_RUN"') == "$OUTLAST_RUN"
    assert shell_variable("solve $OUTLAST_RUN $HOME") == "$HOME"
    assert shell_variable("solve ${HOME}") == "${HOME}"
    assert shell_variable("solve '$HOME'") is None
    assert shell_variable('bash -c "solve $HOME"') is None


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("python 'train.py", "a quote is opened"),
        ("   ", "is empty"),
        ("''", "is empty"),
        ("LR=1 python train.py", "LR=1 is shell syntax"),
        ("python missing.py", "missing.py is not in"),
        ("./missing.sh", "missing.sh is not in"),
        ("train.py --fast", "not a program on the PATH"),
        ("./train.py", "is not executable"),
    ],
)
def test_a_command_that_cannot_start_is_a_mistake(command: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (text, _hint), *more = command_mistakes(command, tmp_path)
    assert sentence in text
    assert not more


@pytest.mark.parametrize("command", ["python train.py", "./train.py"])
def test_a_missing_script_gets_a_hint_where_to_put_it(command: str, tmp_path: Path) -> None:
    here = "put it beside params.yaml and list it under code:"
    assert command_mistakes(command, tmp_path) == [(f"train.py is not in {tmp_path}", here)]
    (tmp_path / "trian.py").write_text("")
    assert command_mistakes(command, tmp_path)[0][1] == 'did you mean "trian.py"?'


@pytest.mark.parametrize(
    "command",
    ["python train.py", "python -m json.tool", "python -c 1", "./run.sh", "env A=1 sh run.sh", "/bin/true"],
)
def test_a_command_that_can_start_is_no_mistake(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("")
    (tmp_path / "run.sh").chmod(0o755)
    assert command_mistakes(command, tmp_path) == []


def test_a_program_that_is_not_on_the_path_is_a_warning(tmp_path: Path) -> None:
    assert "is not found on this machine's PATH" in next(command_warnings("no-such-program-1 x", tmp_path))[0]
    assert list(command_warnings("sh -c true", tmp_path)) == []


def test_the_warning_about_a_missing_python_names_the_one_that_is_used_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "python is not found on this machine's PATH"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(command_warnings("python -c 1", tmp_path)) == [
        (missing, f"{sys.executable}, which runs Outlast, is used instead")
    ]
    python3 = tmp_path / "bin" / "python3"
    python3.parent.mkdir()
    python3.write_text("#!/bin/sh\n")
    python3.chmod(0o755)
    monkeypatch.setenv("PATH", str(python3.parent))
    assert list(command_warnings("python -c 1", tmp_path)) == [(missing, "python3 is used instead")]
    assert list(command_warnings("python3 -c 1", tmp_path)) == []


@pytest.mark.parametrize("installed", [["python3"], []])
def test_the_python_named_in_the_warning_is_the_one_that_a_job_uses(
    installed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in installed:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ((_, hint),) = command_warnings("python -c 1", tmp_path / "experiment")
    assert hint.startswith(resolve_python(["python"], {"PATH": str(tmp_path)})[0])


def test_splitting_and_showing_need_neither_pydantic_nor_ruamel() -> None:
    code = (
        "import sys, outlast.spec.command, outlast.units\n"
        "sys.exit(any(name.split('.')[0] in ('pydantic', 'ruamel') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
