"""Text from nodes, schedulers and other users cannot control the terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest

from outlast import cli
from outlast.cli.commands import logs
from outlast.cli.safe_output import LogFilter, SafeOutput, unfiltered, without_control


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b]0;title\x07",
        "\x1b[2J",
        "\x1b[31;1H",
        "\x9b2J",
        "a\rb",
        "\x08",
        "\x7f",
        "\u202e",
        "\u2066",
        "\x1b[8m",
    ],
)
def test_control_characters_are_replaced(hostile: str) -> None:
    safe = without_control("x%sy" % hostile)
    assert "\ufffd" in safe and not set(safe) & set("\x1b\x07\x08\r\x7f\x9b\u202e\u2066")


def test_newlines_tabs_other_scripts_and_colours_stay() -> None:
    text = "größer\t→ 学習 \N{GRINNING FACE}\n" + click.style("failed", fg="red", bold=True)
    assert without_control(text) == text


def test_what_a_command_prints_is_filtered_on_both_streams(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "argv", ["outlast", "status", str(tmp_path / "evil\x07")])
    with pytest.raises(SystemExit):
        cli.main()
    assert "evil\ufffd: no such directory" in err.getvalue()
    assert isinstance(sys.stdout, SafeOutput) and unfiltered(sys.stdout) is not sys.stdout
    print("x\x1b[2J")
    assert out.getvalue() == "x\ufffd[2J\n"


LOG = (
    "\x1b[1;38;5;9mred\x1b[0m é 漢\n\r 50 %|#### |\x1b[K\n"  # stays
    "\x1b]0;title\x07\x1b[2J\x9b31m\x00\x1b[6n \u202e\u2066\x1bc\x7f\x1b[999999999999999999999999999999999m"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_log_loses_what_would_control_a_terminal_however_it_is_cut(size: int) -> None:
    content, log_filter = LOG.encode() + b"\xff\xc2\x9b1m end", LogFilter()
    parts = [log_filter.feed(content[start : start + size]) for start in range(0, len(content), size)]
    text = "".join(parts)
    assert text.startswith("\x1b[1;38;5;9mred\x1b[0m é 漢\n\r 50 %|#### |\x1b[K\n")
    rest = text.partition("\x1b[K\n")[2]
    assert rest.endswith(" end")
    assert not set(rest) & set("\x00\x07\x1b\x7f\x9b\u202e\u2066")


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_a_log_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    content = b"\x1b]0;title\x07line\xff\n"
    (tmp_path / "log").write_bytes(content)
    printed = io.BytesIO()
    stream = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", SafeOutput(stream))
    monkeypatch.setattr(logs, "on_terminal", lambda: terminal)
    assert logs._copy(tmp_path / "log", 0, LogFilter()) == len(content)
    expected = "\ufffd]0;title\ufffdline\ufffd\n".encode()
    assert printed.getvalue() == (expected if terminal else content)
