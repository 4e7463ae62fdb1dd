"""`outlast demo` shows what it announces, or fails, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.commands import demo
from outlast.demo import undisturbed
from outlast.demo.compare import compare
from outlast.demo.trouble import DemoTrouble
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry, Run, RunState
from outlast.errors import BadInput, OutlastError
from outlast.exchange.experiment import Experiment
from support.experiments import Lab


def processes_in(place: Path) -> list[str]:
    """Return the command lines of processes whose arguments or working directory are in `place`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            where = str((folder / "cwd").readlink())
        except OSError:
            continue  # it has ended, or belongs to another user
        if str(place) in words or where.startswith(str(place)):
            found.append(words)
    return found


@pytest.fixture
def temporary(lab: Lab) -> Path:
    place = lab.root / "tmp"
    place.mkdir()
    lab.environment["TMPDIR"] = str(place)
    return place


def test_the_demo_kills_a_job_damages_a_checkpoint_and_ends_with_the_same_weights(
    lab: Lab, temporary: Path
) -> None:
    ended = lab.outlast("demo", "--epochs", "25")
    assert ended.returncode == 0, ended.output
    # The limit comes from the undisturbed run: it is too long where the machine is less busy afterwards.
    first = "evicted" if "demo: evicting attempt 1 at step" in ended.stdout else "continue"
    story = [
        "demo: training undisturbed",
        "demo: done undisturbed after",
        "digits: attempt 1 ended as %s: The training saved its state" % first,
        "demo: killing attempt",
        "ended as evicted: killed without warning",
        "demo: tearing the newest checkpoint",
        "demo: the torn checkpoint was put aside",
        "digits: FINISHED",
        "Where the time went",
        "lost work",
        "the same, bit for bit",
        "outlast init my-training --example digits",
    ]
    places = [ended.stdout.find(part) for part in story]
    assert -1 not in places and places == sorted(places), ended.output
    assert "\033" not in ended.stdout, "colours are for terminals"
    assert list(temporary.iterdir()) == []
    assert processes_in(temporary) == []


def test_an_interrupted_demo_ends_all_processes_that_it_started(lab: Lab, temporary: Path) -> None:
    process = lab.start("demo", "--epochs", "8")
    jobs = "outlast-demo-*/digits/params/runs/digits/001-*/progress.jsonl"
    lab.until("a training run in the demo's cluster", lambda: list(temporary.glob(jobs)))
    assert processes_in(temporary)
    process.send_signal(signal.SIGINT)
    ended = lab.finish(process)
    assert ended.returncode == INTERRUPTED and "interrupted" in ended.stderr, ended.output
    assert list(temporary.iterdir()) == []
    assert processes_in(temporary) == []


def test_without_numpy_the_demo_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    error = CliRunner().invoke(demo.command).exception
    assert isinstance(error, BadInput) and "pip install numpy" in str(error)


def test_a_directory_that_is_not_empty_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    error = CliRunner().invoke(demo.command, ["--keep", str(tmp_path)]).exception
    assert isinstance(error, BadInput) and str(tmp_path) in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# The verdict, with fake results of both training runs.


def write_result(directory: Path, weight: float, accuracy: float = 0.9) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    np.savez(directory / "model.npz", weight=np.array([weight, np.nan], np.float32))
    (directory / "metrics.json").write_text(json.dumps({"accuracy": accuracy}))


def play(
    monkeypatch: pytest.MonkeyPatch,
    keep: Path,
    *,
    weight: float = 1.0,
    state: RunState = RunState.FINISHED,
    killed: bool = True,
    noticed: bool = True,
) -> Any:
    def train(directory: Path, command: str, show: Any) -> float:
        write_result(directory, 1.0)
        return 6.0

    def supervise(place: Any, trouble: DemoTrouble) -> tuple[Run, Sequence[Attempt]]:
        write_result(place.experiment.result("digits"), weight)
        trouble.killed, trouble.noticed = killed, noticed
        return Run("digits", 0, 1, {}, state, 0.0, 0.0, "a reason"), []

    monkeypatch.setattr(undisturbed, "train", train)
    monkeypatch.setattr(demo, "_supervise", supervise)
    return CliRunner().invoke(demo.command, ["--keep", str(keep / "demo")])


def test_the_demo_passes_when_all_happened_and_the_weights_are_equal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = dict(os.environ)
    result = play(monkeypatch, tmp_path)
    assert result.exit_code == 0, result.output
    assert "time: 2s" in (tmp_path / "demo" / "digits" / "params.yaml").read_text()
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["digits", "undisturbed"]
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"weight": float(np.nextafter(np.float32(1), np.float32(2)))}, "weight differs in 2 of 2 numbers"),
        ({"state": RunState.FAILED}, "the run is failed: a reason"),
        ({"killed": False}, "no attempt was killed"),
        ({"noticed": False}, "was torn"),
    ],
)
def test_the_demo_fails_when_a_part_of_it_did_not_happen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: dict[str, Any], sentence: str
) -> None:
    result = play(monkeypatch, tmp_path, **part)
    assert result.exit_code == FAILED
    assert sentence in result.stderr and "What to try next" not in result.stdout


def test_equal_means_equal_in_every_bit_and_the_accuracy_counts_too(tmp_path: Path) -> None:
    write_result(tmp_path / "a", 0.0)
    write_result(tmp_path / "same", 0.0)
    write_result(tmp_path / "sign", -0.0)
    write_result(tmp_path / "worse", 0.0, accuracy=0.8)
    assert compare(tmp_path / "a", tmp_path / "same").differences == ()
    assert compare(tmp_path / "a", tmp_path / "sign").differences != ()
    assert compare(tmp_path / "a", tmp_path / "worse").differences == ("the accuracy is 0.9000 and 0.8000",)


def test_the_error_of_a_failed_undisturbed_training_has_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('on the way'); raise SystemExit('no such layer')")
    with pytest.raises(OutlastError, match=r"(?s)exit code 1.*on the way.*no such layer"):
        undisturbed.train(tmp_path, "python train.py", lambda text: None)


# The kill and the damaged checkpoint, with an attempt that consists of files.


class Played:
    """An attempt whose logs the test writes."""

    def __init__(self, root: Path, number: int = 2) -> None:
        self.experiment = Experiment(root)
        self.attempt = Attempt("digits", number, "t%d" % number, AttemptState.RUNNING, 0.0)
        self.killed: list[str] = []
        self.evicted: list[str] = []
        self.shown: list[str] = []
        self.trouble = DemoTrouble(
            self.experiment, self.killed.append, self.evicted.append, self.shown.append
        )
        self.place = self.experiment.exchange_of(self.attempt)
        self.place.mkdir(parents=True)
        self.write("events", {"event": "phase", "phase": "compute"})

    def write(self, name: str, line: dict[str, Any]) -> None:
        with (self.place / (name + ".jsonl")).open("a") as file:
            file.write(json.dumps({**line, "mono": 1.0}) + "\n")

    def progress(self, event: str, step: int) -> None:
        self.write("progress", {"event": event, "step": step, "total": 9, "metrics": {}})

    def checkpoint(self, step: int, generation: int) -> Path:
        name = "step-%012d-g%06d-s000001" % (step, generation)
        path = self.experiment.checkpoints("digits") / name / "state.outlast"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 100)
        return path

    def end(self, outcome: str, token: str = "t2", **account: Any) -> None:
        data = {"outcome": outcome, "account": account}
        self.trouble.on_entries([JournalEntry(2.0, "digits", EntryKind.ENDED, token, data)])


def test_an_attempt_is_killed_only_after_a_save_and_further_progress(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.progress("progress", 3)
    played.trouble.kill_if_due(played.attempt)
    played.progress("saved", 4)
    played.trouble.kill_if_due(played.attempt)
    assert played.killed == []
    played.progress("progress", 5)
    played.trouble.kill_if_due(replace(played.attempt, number=1))
    played.trouble.kill_if_due(replace(played.attempt, state=AttemptState.QUEUED))
    played.trouble.kill_if_due(None)
    assert played.killed == []
    played.trouble.kill_if_due(played.attempt)
    played.trouble.kill_if_due(played.attempt)
    assert played.killed == ["t2"], "once"


def test_a_first_attempt_that_its_limit_does_not_end_is_evicted_halfway(tmp_path: Path) -> None:
    played = Played(tmp_path, number=1)
    played.progress("progress", 4)
    played.trouble.kill_if_due(played.attempt)
    played.progress("progress", 5)
    played.trouble.kill_if_due(replace(played.attempt, state=AttemptState.QUEUED))
    assert played.trouble.will_end(played.attempt) and played.evicted == []
    played.trouble.kill_if_due(played.attempt)
    played.trouble.kill_if_due(played.attempt)
    assert (played.evicted, played.killed) == (["t1"], []), "once, and not killed"


def test_the_newest_checkpoint_is_truncated_as_soon_as_the_kill_is_recorded(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.progress("saved", 4)
    played.progress("progress", 5)
    old, newest = played.checkpoint(9, generation=1), played.checkpoint(4, generation=2)
    played.trouble.kill_if_due(played.attempt)
    assert (old.stat().st_size, newest.stat().st_size) == (100, 100)
    played.end("evicted")
    assert (old.stat().st_size, newest.stat().st_size) == (100, 50)
    assert played.trouble.killed and not played.trouble.noticed
    played.end("continue", "t3", notes=["checkpoint %s was put aside: cut" % newest.parent.name], resumed=3)
    assert played.trouble.noticed and "step 3" in played.shown[-1]


def test_an_attempt_that_ended_before_its_kill_does_not_count(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.progress("saved", 4)
    played.progress("progress", 5)
    played.trouble.kill_if_due(played.attempt)
    played.end("continue")
    assert not played.trouble.killed and not played.trouble.torn
    played.trouble.kill_if_due(played.attempt)
    assert played.killed == ["t2", "t2"], "another one is killed instead"
