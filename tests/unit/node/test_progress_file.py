"""Whether a training has left by itself, as its own last line tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.node.progress_file import has_left

LEFT = '{"event": "left"}\n'
SAVED = '{"event": "saved", "step": 1}\n'


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (SAVED + LEFT, True),
        (LEFT.rstrip(), True),
        (LEFT + SAVED, False),
        (LEFT + SAVED[:10], False),  # somebody went on after it, and was killed in the midst of a line
        (LEFT[:-4], False),
        ("[]\n", False),
        ("", False),
        ("x" * 70_000 + "\n" + LEFT, True),
    ],
)
def test_only_the_last_line_tells_that_it_has_left(tmp_path: Path, told: str, left: bool) -> None:
    (tmp_path / "progress.jsonl").write_text(told, encoding="utf-8")
    assert has_left(str(tmp_path / "progress.jsonl")) is left


def test_who_has_told_nothing_has_not_left(tmp_path: Path) -> None:
    assert not has_left(str(tmp_path / "progress.jsonl"))
