"""Every command prints on every terminal: other encodings, no colours, 80 columns; odd names and output."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

from support.experiments import PATIENCE, Lab

OUTLAST = [sys.executable, "-m", "outlast"]
#: What the experiment is named and prints: letters that Latin-1 has and lacks, and bytes that are no UTF-8.
WORDS = "größe → 学習 \N{GRINNING FACE}"
TRAIN = """\
echo '%s'
printf '\\377\\376 bytes \\033[2J\\n'
echo '%s: no such layer' >&2
exit 3
""" % (WORDS, WORDS)

#: The command that prints the bytes of the training as they are.
LOGS = ("logs", "run")
COMMANDS = [
    ("--help",),
    ("status",),
    ("status", "--all"),
    ("status", "--json"),
    ("explain", "run"),
    ("explain", "run", "--json"),
    LOGS,
    ("report",),
    ("report", "--json"),
    ("check",),
    ("clusters",),
    ("clusters", "local"),
    ("data", "check"),
    ("data", "cache"),
    ("local", "status"),
    ("tick",),
    ("up",),
    ("cancel", "run"),
    ("submit",),
    ("logs", "größe"),
    ("explain", "学習"),
    ("init", "学習"),
    ("data", "fetch", "http://127.0.0.1:1/größe→"),
]
#: Commands with colours or a display of their own.
SHOWN = [
    ("status",),
    ("status", "--watch"),
    ("explain", "run"),
    ("report",),
    ("check",),
    ("clusters",),
    ("up",),
]
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


def failed(lab: Lab) -> Path:
    directory = lab.experiment(
        "größe → 学習", {"train.sh": TRAIN}, name="odd-run", command="sh train.sh", resources={"time": "1min"}
    )
    ended = lab.outlast("run", directory)
    assert ended.returncode == 1, ended.output
    return directory


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_every_command_prints_in_every_encoding(lab: Lab, encoding: str) -> None:
    directory = failed(lab)
    codec = {"C": "ascii"}.get(encoding, encoding)
    for words in [*COMMANDS, ("retry", "run"), ("run",)]:
        ended = subprocess.run(
            [*OUTLAST, *words],
            cwd=directory,
            env={**lab.environment, **ENCODINGS[encoding]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        shown = ended.stdout + ended.stderr
        if words == LOGS:
            assert TRAIN.encode().split(b"'")[1] in shown and ended.returncode == 0
            continue
        printed = shown.decode(codec)
        assert ended.returncode in (0, 1, 2), (words, printed)
        for trouble in ("internal error", "Traceback", "codec", "\x1b", "surrogate"):
            assert trouble not in printed, (words, printed)
        if words == ("explain", "run"):
            assert ("gr\\xf6\\xdfe" if codec == "ascii" else "größe") in printed


def on_a_terminal(lab: Lab, directory: Path, words: tuple[str, ...], **variables: str) -> str:
    """Return what a command prints on a terminal of 80 columns."""
    main, side = pty.openpty()
    environment = {name: value for name, value in lab.environment.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [*OUTLAST, *words],
        cwd=directory,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "80", **variables},
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
    ) as process:
        os.close(side)
        shown = b""
        try:
            while part := os.read(main, 65536):
                shown += part
        except OSError as error:  # the other side is closed
            assert error.errno == errno.EIO
        finally:
            os.close(main)
        process.wait(PATIENCE)
    printed = shown.decode(errors="replace").replace("\r\n", "\n")
    assert "Traceback" not in printed and "internal error" not in printed, (words, printed)
    return printed


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_a_terminal_without_colours_gets_none_and_what_failed_has_a_mark(
    lab: Lab, variables: dict[str, str]
) -> None:
    directory = failed(lab)
    for words in (*SHOWN, ("run",)):
        printed = on_a_terminal(lab, directory, words, **variables)
        if "TERM" in variables:
            assert "\x1b" not in printed, (words, printed)
        else:  # `run` moves the cursor, but shows no colours
            assert "\x1b[3" not in printed, (words, printed)
        if words == ("status",):
            assert "failed !" in printed


def test_on_80_columns_the_reason_of_a_failure_is_whole_and_stands_out(lab: Lab) -> None:
    directory = failed(lab)
    whole = lab.outlast("status", "--json", directory).json["runs"][0]["reason"]
    printed = on_a_terminal(lab, directory, ("status",))
    assert "\x1b[31m\x1b[1mfailed\x1b[0m" in printed
    shown = click.unstyle(printed)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    assert " ".join(whole.split()) in " ".join(shown.split())
