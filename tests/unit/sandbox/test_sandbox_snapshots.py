"""Snapshots of checkpoints go from one job to the next where nothing is shared."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from outlast.domain.model import Attempt, AttemptState, Checkpoints, Run, RunState, Spec
from outlast.exchange.experiment import Experiment
from outlast.exchange.sandbox_exchange import SandboxExchange
from outlast.node.event_log import EventLog
from outlast.node.pulse import no_pulse
from outlast.node.sandbox import layout, manifest
from outlast.node.sandbox.commit import Sandbox, mirror_state
from outlast.node.snapshots.script_files import ScriptFiles
from outlast.node.snapshots.snapshot_store import SnapshotStore
from outlast.node.snapshots.start_state import StartStateFinder
from outlast.schedulers.profile import Profile

RUN = Run("run", 0, 1, {}, RunState.ACTIVE, added=0.0, since=0.0)


def attempt(number: int) -> Attempt:
    return Attempt("run", number, "batch%d-1" % number, AttemptState.RUNNING, 0.0)


class Job:
    """The sandbox of one job, and the exchange on the other side."""

    def __init__(self, root: Path, number: int = 1, profile: Profile | None = None) -> None:
        experiment = Experiment(root / "experiment")
        program = experiment.zipapp("0" * 64)
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_bytes(b"")
        self.exchange = SandboxExchange(experiment, program, profile or Profile())
        self.attempt = attempt(number)
        self.sandbox = root / ("sandbox-%d" % number)
        self.travel = self.sandbox / "travel"
        self.checkpoints = self.travel / "checkpoints"
        self.store = SnapshotStore(
            str(self.travel / "snapshots"), ScriptFiles(str(self.checkpoints)), 3, 10**9
        )

    def start(self, most: int = 3) -> Job:
        """Transfer the input of the job to its sandbox, and bring the newest state to its place."""
        spec = Spec(name="run", command="true", checkpoints=Checkpoints(snapshots=most))
        self.exchange.write_order(RUN, self.attempt, spec)
        shutil.copytree(self.home / "committed", self.sandbox / "committed")
        layout.restore_newest(str(self.sandbox))
        return self

    def save(self, text: str, name: str = "model") -> int:
        """Overwrite the checkpoint file and take a snapshot."""
        (self.checkpoints / name).write_text(text)
        taken = self.store.take(sure=True)
        assert taken is not None
        return taken.snapshot.number

    def end(self) -> Job:
        """Transfer the sandbox back, and move its files to their places twice, as after a crash."""
        layout.pack(str(self.sandbox))
        shutil.copytree(self.travel, self.home / "travel")
        return self.settle()

    def settle(self) -> Job:
        self.exchange.settle(self.attempt)
        self.exchange.settle(self.attempt)
        return self

    @property
    def home(self) -> Path:
        return self.exchange.experiment.exchange_of(self.attempt)

    @property
    def kept(self) -> Path:
        return self.exchange.experiment.snapshots("run")

    def numbers(self) -> list[int]:
        return [one.number for one in self.store.snapshots()]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_job_finds_the_snapshots_of_the_job_before_it(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    first.save("one")
    first.save("two")
    (first.checkpoints / "model").write_text("tw")  # killed while it wrote
    first.end()
    assert names(first.kept) == ["000001", "000002"]
    assert not (first.home / "travel/snapshots").exists(), "they take no space twice"
    second = Job(tmp_path, 2).start()
    assert second.numbers() == [1, 2]
    second.store.restore(second.store.snapshots()[-1])
    assert (second.checkpoints / "model").read_text() == "two"


def test_a_return_that_was_interrupted_is_completed_by_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Job(tmp_path, 1).start()
    first.save("one", "first")
    first.save("one", "second")
    first.save("two", "second")
    move = os.rename

    def fail(source: str, target: str, **descriptors: int) -> None:
        if source == "second" and (first.checkpoints / "second").exists() is False:
            raise OSError(errno.EIO, "the disk is gone")
        move(source, target, **descriptors)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        patch.setattr(os, "rename", fail)
        first.store.restore(first.store.snapshots()[1])
    assert names(first.checkpoints) == ["first"], "a part is in its place"
    first.end()
    second = Job(tmp_path, 2).start()
    assert names(second.checkpoints) == ["first"]
    finder = StartStateFinder(
        second.store, str(second.checkpoints), EventLog(str(tmp_path / "events")), no_pulse
    )
    finder.prepare(None)
    assert (second.checkpoints / "second").read_text() == "one"
    assert "restoring.json" not in names(second.end().kept)


def test_a_snapshot_that_a_job_gave_up_does_not_come_back(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    for text in ("one", "two", "three"):
        first.save(text)
    first.end()
    second = Job(tmp_path, 2).start()
    second.store.restore(second.store.snapshots()[0])
    second.store.remove_from(2)
    second.end()
    assert names(second.kept) == ["000001"], "nor what was put aside"
    assert Job(tmp_path, 3).start().numbers() == [1]


@pytest.mark.parametrize("path", ["files/model", "manifest.json"])
def test_a_snapshot_whose_transfer_was_cut_is_left_out(tmp_path: Path, path: str) -> None:
    job = Job(tmp_path).start()
    job.save("one")
    job.save("two")
    layout.pack(str(job.sandbox))
    shutil.copytree(job.travel, job.home / "travel")
    with (job.home / "travel/snapshots/000002" / path).open("r+b") as file:
        file.truncate(1)
    job.settle()
    assert names(job.kept) == ["000001"]


def test_a_job_that_brings_no_snapshot_back_leaves_the_earlier_ones(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    first.save("one")
    first.end()
    second = Job(tmp_path, 2).start()
    second.settle()  # it was killed, and nothing came back
    assert names(second.kept) == ["000001"]
    assert Job(tmp_path, 3).start().numbers() == [1]


def test_a_commit_has_the_newest_snapshot_and_the_earlier_ones_stay(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    first.save("one")
    first.end()
    second = Job(tmp_path, 2).start()
    second.save("two")
    second.save("three")
    sandbox = Sandbox(str(second.sandbox), str(second.travel / "unfinished/output"))
    listed = mirror_state(sandbox, 5)
    assert "snapshots/000003/files/model" in listed.files
    assert "snapshots/000002/files/model" not in listed.files
    manifest.write(sandbox.snapshot, listed)
    shutil.copytree(sandbox.snapshot, second.home / "committed/commit-000005")
    second.settle()
    assert names(second.kept) == ["000001", "000003"]
    assert Job(tmp_path, 3).start().numbers() == [1, 3]


def test_no_more_snapshots_travel_than_the_run_keeps(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    for text in ("one", "two", "three"):
        first.save(text)
    first.end()
    assert Job(tmp_path, 2).start(most=1).numbers() == [3]
    assert Job(tmp_path, 3).start(most=0).numbers() == []


def test_snapshots_that_the_pool_would_not_transfer_stay_behind(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    first.save("1" * 1000)
    first.save("2" * 1000)
    first.end()
    assert Job(tmp_path, 2, Profile(largest_transfer=3500)).start().numbers() == [1, 2]
    assert Job(tmp_path, 3, Profile(largest_transfer=2500)).start().numbers() == [2]
    assert Job(tmp_path, 4, Profile(largest_transfer=1500)).start().numbers() == []


def test_a_run_whose_checkpoints_were_moved_away_starts_without_snapshots(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    first.save("one")
    first.end()
    shutil.rmtree(first.exchange.experiment.checkpoints("run"))
    assert Job(tmp_path, 2).start().numbers() == []


def test_the_exchange_of_snapshots_is_completed_after_a_crash_of_the_controller(tmp_path: Path) -> None:
    first = Job(tmp_path, 1).start()
    first.save("one")
    first.end()
    first.kept.rename(first.kept.with_name("snapshots.going"))
    second = Job(tmp_path, 2)
    second.exchange.write_order(RUN, second.attempt, Spec(name="run", command="true"))
    second.settle()
    assert names(second.kept) == ["000001"]
