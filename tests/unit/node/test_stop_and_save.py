"""The stop signal waits for a checkpoint that is written in place, and never longer than its share."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

import pytest

from outlast.node import process, progress_file, supervise, time_limits
from outlast.node.event_log import EventLog
from outlast.node.pulse import Pulse
from outlast.node.signals import Signals
from outlast.node.snapshots import checkpoint_watch
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.node.snapshots.script_files import WorkingFiles
from outlast.node.supervise import StopSignals, TrainingExit

#: The node program gets its stop signal when the training begins to save. At its own stop signal, the
#: training records how much of the checkpoint is there.
TRAINING = """
trap 'cat checkpoints/model | wc -c > at-stop; exit 0' TERM
printf x > checkpoints/model
kill -USR1 $PPID
while :; do sleep 0.05; done
"""


class SlowSave(CheckpointWatch):
    """A watch on a checkpoint of which one more byte is there at each check, until it is complete."""

    def __init__(self, directory: Path, size: float) -> None:
        super().__init__(str(directory))
        self._model = directory / "model"
        self._size = size

    def changed(self) -> bool:
        if self._model.exists() and self._model.stat().st_size < self._size:
            with self._model.open("a") as file:
                file.write("x")
        return super().changed()


class Bench:
    """Runs a training under supervision and keeps the events that were written."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "checkpoints").mkdir()

    def run(self, script: str, size: float, grace: float = 120, atomic: bool = False) -> TrainingExit:
        limits = time_limits.limits_for(3600, grace, time.monotonic(), time.time())
        with Signals() as signals:
            watch = SlowSave(self.place / "checkpoints", size)
            child = process.start(["sh", "-c", script], dict(os.environ), str(self.place), 2)
            pulse = Pulse(signals, EventLog(str(self.place / "events")), limits.last_moment, grace)
            stops = StopSignals(signal.SIGTERM)
            return supervise.supervise(
                child, limits, stops, grace, pulse, watch, saves_atomically=lambda: atomic
            )

    @property
    def bytes_at_stop(self) -> int:
        return int((self.place / "at-stop").read_text())

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in (self.place / "events").read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(checkpoint_watch, "_QUIET", 0.1)
    return Bench(tmp_path)


def test_the_stop_signal_waits_until_a_save_in_place_is_complete(bench: Bench) -> None:
    ended = bench.run(TRAINING, size=6)
    assert (ended.code, ended.stopped, ended.killed) == (0, "signal", False)
    assert bench.bytes_at_stop == 6
    assert "changed" in bench.events[: bench.events.index("stop")]


@pytest.mark.parametrize(("constant", "value"), [("_SAVE_SHARE", 0.005), ("_MAX_SAVE_WAIT", 0.5)])
def test_a_training_that_saves_all_the_time_is_stopped_within_its_share_of_the_grace(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, constant: str, value: float
) -> None:
    monkeypatch.setattr(supervise, constant, value)
    ended = bench.run(TRAINING, size=math.inf)
    assert (ended.code, ended.stopped, ended.killed) == (0, "signal", False)


def test_the_stop_signal_does_not_wait_for_saves_that_cannot_be_torn(bench: Bench) -> None:
    ended = bench.run(TRAINING, size=math.inf, atomic=True)
    assert (ended.code, ended.stopped) == (0, "signal")
    assert bench.events[0] == "stop"


def test_a_training_that_ends_while_the_stop_signal_waits_is_not_signalled(bench: Bench) -> None:
    until_saved = "while [ $(cat checkpoints/model | wc -c) -lt 4 ]; do sleep 0.05; done"
    script = f"printf x > checkpoints/model; kill -USR1 $PPID; {until_saved}; exit 3"
    ended = bench.run(script, size=math.inf)
    assert (ended.code, ended.signal, ended.stopped) == (3, None, "signal")


def test_a_directory_is_quiet_a_second_after_its_last_change(tmp_path: Path) -> None:
    now = [100.0]
    watch = CheckpointWatch(str(tmp_path), lambda: now[0])
    assert not watch.changed() and watch.quiet_at < 100
    (tmp_path / "model").write_text("1")
    assert watch.changed() and watch.quiet_at == 101
    now[0] = 100.9
    assert not watch.changed() and watch.quiet_at == 101
    (tmp_path / "model").write_text("12")
    now[0] = 101.0
    assert watch.changed() and watch.quiet_at == 102
    now[0] = 102.0
    assert not watch.changed() and watch.quiet_at < 102


def test_a_model_that_is_written_in_the_working_directory_is_waited_for_and_is_no_checkpoint(
    tmp_path: Path,
) -> None:
    now = [100.0]
    checkpoints, job = tmp_path / "checkpoints", tmp_path / "job"
    checkpoints.mkdir()
    (job / "out").mkdir(parents=True)
    working = WorkingFiles(str(job), lambda path: path.endswith(".pt"))
    watch = CheckpointWatch(str(checkpoints), lambda: now[0], working)
    (job / "out" / "log.txt").write_text("1")
    assert not watch.changed() and not watch.made_changed and watch.quiet_at < 100
    (job / "out" / "ckpt.pt").write_text("1")
    assert not watch.changed() and watch.made_changed and watch.quiet_at == 101
    now[0] = 101.5
    assert not watch.changed() and not watch.made_changed and watch.quiet_at < 102
    assert watch.made_progressed and not watch.progressed


@pytest.mark.parametrize(
    ("events", "uses"),
    [
        ([], False),
        (["began", "left"], False),
        (["began", "saved"], True),
        (["loaded", *["aside"] * 9000], True),
    ],
)
def test_the_log_of_the_training_shows_whether_it_uses_outlasts_checkpoints(
    tmp_path: Path, events: list[str], uses: bool
) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_text("".join(json.dumps({"event": event}) + "\n" for event in events))
    assert progress_file.has_checkpoints(str(path)) is uses
    assert not progress_file.has_checkpoints(str(tmp_path / "none"))
