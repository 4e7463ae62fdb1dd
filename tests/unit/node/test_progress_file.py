"""The last line of the progress log shows if the training has left; the file beside it has the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.node.progress_file import has_left, newest_progress_path, newest_step

LEFT = '{"event": "left"}\n'
SAVED = '{"event": "saved", "step": 1}\n'


@pytest.mark.parametrize(
    ("log", "left"),
    [
        (SAVED + LEFT, True),
        (LEFT.rstrip(), True),
        (LEFT + SAVED, False),
        (LEFT + SAVED[:10], False),  # another process continued, and was killed while writing a line
        (LEFT[:-4], False),
        ("[]\n", False),
        ("", False),
        ("x" * 70_000 + "\n" + LEFT, True),
    ],
)
def test_only_the_last_line_shows_that_the_training_has_left(tmp_path: Path, log: str, left: bool) -> None:
    (tmp_path / "progress.jsonl").write_text(log, encoding="utf-8")
    assert has_left(str(tmp_path / "progress.jsonl")) is left


def test_a_training_without_a_log_has_not_left(tmp_path: Path) -> None:
    assert not has_left(str(tmp_path / "progress.jsonl"))


def test_the_newest_step_is_read_from_the_file_beside_the_log(tmp_path: Path) -> None:
    log = str(tmp_path / "events")
    assert newest_step(log) is None
    Path(newest_progress_path(log)).write_text('{"step": 7}\n')
    assert newest_step(log) == 7
