"""The log that the training process writes for the node program and the controller."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.exchange.attempt_log import last_progress
from outlast.training.errors import SaveFailed
from outlast.training.progress_log import ProgressLog
from outlast.training.training_session import SessionSettings, TrainingSession


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_loads_saves_and_failures_are_logged_with_both_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events"
    session = TrainingSession(SessionSettings(directory=str(tmp_path / "c"), progress_file=str(path)))
    session.load()
    session.save({"a": b"x" * 1000}, step=3, wait=True)
    with monkeypatch.context() as patch:

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "mkdir", full)
        with pytest.raises(SaveFailed):
            session.save({}, step=4, wait=True)
    loaded, saved, failed = lines(path)
    assert (loaded["event"], loaded["step"]) == ("loaded", None)
    assert (saved["event"], saved["step"]) == ("saved", 3)
    assert saved["bytes"] > 1000
    assert saved["seconds"] >= 0
    assert (failed["event"], failed["step"]) == ("save-failed", 4)
    assert "No space left" in failed["why"]
    assert all(line["at"] > 1e9 and line["mono"] > 0 for line in (loaded, saved, failed))


def test_progress_is_written_a_few_times_a_second_and_the_last_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    log = ProgressLog(str(tmp_path / "events.jsonl"), now=lambda: now[0])
    seen: list[int] = []
    real = os.rename

    def rename(source: str, target: str) -> None:
        real(source, target)
        seen.append(lines(Path(target))[0]["step"])

    monkeypatch.setattr(os, "rename", rename)
    for step in range(1000):
        log.progress(step, 1000, {"loss": step})
        now[0] += 0.001
    log.flush()
    log.flush()
    assert seen == [0, 250, 500, 750, 999]


def test_the_files_do_not_grow_however_often_progress_is_reported(tmp_path: Path) -> None:
    now = [0.0]
    session = TrainingSession(
        SessionSettings(directory=str(tmp_path / "c"), progress_file=str(tmp_path / "events.jsonl"))
    )
    session._progress_log._now = lambda: now[0]
    session.save({}, step=0)
    for step in range(1000):
        session.progress(step, 1000, {"loss": 0.5})
        now[0] += 1.0
    assert [line["event"] for line in lines(tmp_path / "events.jsonl")] == ["saved"]
    (newest,) = lines(tmp_path / "events.json")
    assert (newest["event"], newest["step"], newest["total"]) == ("progress", 999, 1000)
    assert newest["metrics"] == {"loss": 0.5} and newest["at"] > 1e9 and newest["mono"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "events.json", "events.jsonl"]
    assert last_progress(tmp_path / "events.jsonl") == newest


def test_the_newest_progress_is_whole_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ProgressLog(str(tmp_path / "events"), now=iter(range(100)).__next__)
    log.progress(1, None, {})
    real = os.write

    def half(fd: int, content: Any) -> int:
        if len(content) < 20:
            raise OSError(28, "No space left on device")
        return real(fd, content[: len(content) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        log.progress(2, None, {})
        log.progress(3, None, {})
    assert [line["step"] for line in lines(tmp_path / "events.json")] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["events.json"]
    assert capsys.readouterr().err.count("No space left") == 1
    log.progress(4, None, {})
    assert [line["step"] for line in lines(tmp_path / "events.json")] == [4]


def test_nothing_is_written_behind_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diary, path = tmp_path / "diary", tmp_path / "events"
    diary.write_text("dear diary\n")
    path.symlink_to(diary)
    ProgressLog(str(path)).write_event("saved", step=1)
    assert diary.read_text() == "dear diary\n"
    assert "the training continues" in capsys.readouterr().err


def test_a_pipe_in_place_of_the_log_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events"
    os.mkfifo(path)
    # With a reader, opening the pipe does not block, and what is written there is seen.
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    ProgressLog(str(path)).write_event("saved", step=1)
    assert os.read(reader, 100) == b""
    os.close(reader)
    ProgressLog(str(path)).write_event("saved", step=1)
    assert capsys.readouterr().err.count("the training continues") == 2


def test_a_save_is_preceded_by_the_progress_before_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    session = TrainingSession(SessionSettings(directory=str(tmp_path / "c"), progress_file=str(path)))
    for step in range(3):
        session.progress(step, None, {})
    session.save({}, step=2, wait=True)
    (progress,), (saved,) = lines(tmp_path / "events.json"), lines(path)
    assert (progress["step"], saved["event"], saved["step"]) == (2, "saved", 2)
    assert progress["mono"] < saved["mono"]


def test_metrics_of_any_type_are_converted_to_json_values(tmp_path: Path) -> None:
    log = ProgressLog(str(tmp_path / "events"))
    metrics = {
        "a": np.float32(0.5),
        "b": 3,
        "c": math.nan,
        "d": -math.inf,
        "e": "x" * 500,
        "f": [1],
        "g": Odd(),
        "h": None,
    }
    log.progress(1, 2, metrics)
    (line,) = lines(tmp_path / "events.json")
    assert (line["step"], line["total"]) == (1, 2)
    assert line["metrics"] == {
        "a": 0.5, "b": 3.0, "c": "nan", "d": "-inf", "e": "x" * 100, "f": "[1]", "g": "Odd", "h": "None",
    }  # fmt: skip


def test_a_file_that_cannot_be_written_causes_one_warning_and_the_training_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ProgressLog(str(tmp_path / "missing" / "events"))
    for _ in range(5):
        log.write_event("loaded", step=None)
        log.progress(1, None, {})
        log.flush()
    assert capsys.readouterr().err.count("outlast:") == 1


def test_a_torn_line_does_not_affect_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ProgressLog(str(tmp_path / "events"))
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, content: real(fd, content[:7]))
        log.write_event("loaded", step=1)
    log.write_event("saved", step=2)
    torn, whole = (tmp_path / "events").read_text().splitlines()
    assert len(torn) == 7
    assert json.loads(whole)["step"] == 2


def test_without_a_file_nothing_is_printed_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    session = TrainingSession(SessionSettings())
    session.progress(1, 2, {"loss": 0.1})
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


ENDINGS = {"end": "", "leave": "outlast.leave()", "crash": "1 / 0"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_last_progress_is_written_however_the_script_ends(tmp_path: Path, ending: str) -> None:
    script = "import outlast\nfor i in range(100): outlast.progress(i, 100)\n" + ENDINGS[ending]
    environment = {**os.environ, "OUTLAST_PROGRESS_FILE": str(tmp_path / "events")}
    subprocess.run(
        [sys.executable, "-c", script], env=environment, timeout=60, capture_output=True, check=False
    )
    assert lines(tmp_path / "events.json")[-1]["step"] == 99
