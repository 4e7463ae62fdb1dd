"""Text from nodes, schedulers and other users cannot control the terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest

from outlast import cli
from outlast.cli.safe_output import SafeOutput, unfiltered, without_control


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
