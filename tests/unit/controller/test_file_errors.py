"""Attempts whose files are gone, or cannot be read or written: real files, an imaginary cluster and clock."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from outlast.controller.controller import Controller, Pass
from outlast.domain.model import (
    Attempt,
    AttemptState,
    Cause,
    EntryKind,
    JournalEntry,
    Outcome,
    Run,
    RunState,
    Spec,
)
from outlast.domain.observation import JobPhase, JobView, Patience
from outlast.exchange.experiment import Experiment
from outlast.exchange.sandbox_exchange import SandboxExchange
from outlast.exchange.shared_files import SharedFilesExchange
from outlast.node import claim, legs
from outlast.schedulers.base import JobRef, JobRequest, Scheduler, Submission, SubmitStatus
from outlast.simulation.schedule import KeptRecords

PATIENCE = Patience(missing=60.0, heartbeat=30.0, pause=10.0, longest_pause=600.0)
#: Seconds between two passes.
INTERVAL = 20.0


class Cluster(Scheduler):
    """A scheduler that lists `jobs`."""

    patience = PATIENCE

    def __init__(self) -> None:
        self.jobs: dict[str, JobView] = {}
        self.cancelled: list[str] = []

    def render(self, requests: Sequence[JobRequest]) -> str:
        return ""

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        return {request.token: Submission(SubmitStatus.ACCEPTED, job="17") for request in requests}

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        return dict(self.jobs)

    def cancel(self, views: Sequence[JobView]) -> None:
        self.cancelled += [view.token for view in views]


class Scene:
    """One run with a running job, in the directory `root`."""

    def __init__(self, root: Path, exchange: type[SharedFilesExchange] = SharedFilesExchange) -> None:
        self.now = 1e9
        self.experiment = Experiment(root)
        (root / "outlast.pyz").touch()
        self.records = KeptRecords(lambda entry: None)
        data = {"position": 0, "spec": self.records.add_spec(Spec("s", "train"))}
        self.records.append([JournalEntry(self.now, "r", EntryKind.ADDED, None, data)])
        self.cluster = Cluster()
        self.controller = Controller(
            self.records,
            self.cluster,
            exchange(self.experiment, root / "outlast.pyz"),
            clock=lambda: self.now,
        )
        self.start()

    def step(self) -> Pass:
        done = self.controller.step()
        self.now += INTERVAL
        return done

    def start(self) -> Path:
        """Step until an attempt is submitted, let its job run, and return its directory."""
        for _ in range(100):
            self.step()
            if self.run.current is not None:
                self.list(JobPhase.RUNNING)
                self.step()
                return self.directory
        raise AssertionError(self.run)

    def list(self, phase: JobPhase, exit_code: int | None = None) -> None:
        times = {"started": self.now, "elapsed": 50.0}
        if phase is JobPhase.ENDED:
            times["ended"] = self.now
        token = self.attempt.token
        self.cluster.jobs = {
            token: JobView(token, "17", phase, "node1", exit_code=exit_code, **times)  # type: ignore[arg-type]
        }

    def log_end(self, outcome: Outcome) -> None:
        """Write the log of a job that ended with this outcome, and a delivery."""
        (self.directory / "output").mkdir()
        (self.directory / "output" / "model").write_text("abc")
        delivered = {"model": {"size": 3}} if outcome is Outcome.FINISHED else None
        lines = [
            {"event": "phase", "phase": "compute", "mono": 1.0},
            {
                "event": "end",
                "mono": 2.0,
                "outcome": outcome.value,
                "detail": "logged",
                "delivered": delivered,
            },
        ]
        (self.directory / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def cancel(self) -> None:
        data = {"reason": "cancelled by the user"}
        self.records.append([JournalEntry(self.now, "r", EntryKind.CANCEL_ASKED, None, data)])

    def until_over(self, seconds: float = 1e5) -> None:
        """Step until the run is over; fail after `seconds`."""
        until = self.now + seconds
        while not self.run.state.over:
            assert self.now < until, self.run
            self.step()

    @property
    def run(self) -> Run:
        run = self.records.run("r")
        assert run is not None
        return run

    @property
    def attempt(self) -> Attempt:
        """The last attempt."""
        return max(self.records._attempts.values(), key=lambda attempt: attempt.number)

    @property
    def directory(self) -> Path:
        return self.experiment.exchange_of(self.attempt)

    @property
    def entries(self) -> list[EntryKind]:
        return [entry.kind for entry in self.records.entries]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def refuse(code: int, path: Path) -> OSError:
    return OSError(code, "refused for the test", str(path))


class Refusal:
    """Makes fences in every attempt's directory fail while it is on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on = True
        real = legs.fence

        def fence(exchange: str, by: str) -> None:
            if self.on:
                raise refuse(errno.EACCES, Path(exchange))
            real(exchange, by)

        patch.setattr(legs, "fence", fence)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    return Refusal(monkeypatch)


# Gone.


@pytest.mark.parametrize("kind", [SharedFilesExchange, SandboxExchange])
def test_an_attempt_whose_directory_is_gone_ends_at_once_as_lost_and_another_follows(
    tmp_path: Path, kind: type[SharedFilesExchange]
) -> None:
    scene = Scene(tmp_path, kind)
    directory = scene.directory
    shutil.rmtree(directory)
    scene.list(JobPhase.ENDED, exit_code=0)
    scene.step()
    first = scene.attempt
    assert (first.outcome, first.detail) == (Outcome.LOST, "its directory %s is gone" % directory)
    assert scene.run.last is not None and scene.run.last.cause is Cause.UNKNOWN
    assert not scene.run.sour_hosts, "the host is not to blame"
    scene.start()
    assert scene.attempt.number == 2


def test_a_running_job_whose_directory_is_gone_is_cancelled_before_another_is_submitted(scene: Scene) -> None:
    directory = scene.directory
    shutil.rmtree(directory)
    for _ in range(4):
        scene.step()
    assert scene.cluster.cancelled == [scene.attempt.token]
    assert scene.attempt.number == 1 and scene.attempt.state is AttemptState.RUNNING
    scene.list(JobPhase.ENDED, exit_code=1)
    scene.step()
    assert (scene.attempt.outcome, scene.attempt.detail) == (
        Outcome.LOST,
        "its directory %s is gone" % directory,
    )


def test_a_missing_job_whose_directory_was_replaced_by_a_file_is_given_up(scene: Scene) -> None:
    shutil.rmtree(scene.experiment.params)
    scene.experiment.params.write_text("not a directory")
    scene.cluster.jobs = {}
    scene.until_over()
    assert scene.run.state is RunState.FAILED and str(scene.experiment.params) in scene.run.reason


def test_what_a_job_writes_after_its_directory_was_lost_is_never_published(scene: Scene) -> None:
    first = scene.attempt
    shutil.rmtree(scene.directory)
    scene.list(JobPhase.ENDED, exit_code=0)
    scene.step()
    scene.log_end(Outcome.FINISHED)  # it was alive
    scene.cluster.jobs = {}
    scene.start()
    (scene.directory / "output").mkdir()
    scene.list(JobPhase.ENDED, exit_code=0)
    scene.step()
    assert scene.run.accepted != first.token and not scene.experiment.result("r").exists()
    assert EntryKind.ACCEPTED not in scene.entries


def test_the_fences_of_a_lost_directory_stop_a_late_job_and_a_running_one(scene: Scene) -> None:
    directory = scene.directory
    shutil.rmtree(directory)
    scene.list(JobPhase.ENDED, exit_code=0)
    scene.step()
    assert not claim.acquire(str(directory / "claim.json"), "t", "17", "node1"), "a late job"
    assert (directory / "leg-2" / "claim.json").exists(), "a running job looks for the claim of the next leg"


def test_an_outcome_that_was_read_before_the_directory_was_lost_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.log_end(Outcome.CONTINUE)
    scene.list(JobPhase.ENDED, exit_code=85)
    directory, read = scene.directory, SharedFilesExchange.report

    def read_and_lose(self: SharedFilesExchange, attempt: Attempt) -> object:
        report = read(self, attempt)
        shutil.rmtree(directory, ignore_errors=True)
        return report

    monkeypatch.setattr(SharedFilesExchange, "report", read_and_lose)
    scene.step()
    first = next(one for one in scene.records._attempts.values() if one.number == 1)
    assert first.outcome is Outcome.CONTINUE and str(directory) in first.detail


# Blocked.


def test_an_attempt_that_cannot_be_fenced_shows_the_path_and_ends_once_it_can(
    scene: Scene, refusal: Refusal
) -> None:
    scene.log_end(Outcome.FINISHED)
    scene.list(JobPhase.ENDED, exit_code=0)
    done = scene.step()
    text = "%s: refused for the test" % scene.directory
    assert scene.attempt.blocked == text and text in done.notes[0]
    for _ in range(5):
        scene.step()
    assert scene.entries.count(EntryKind.BLOCKED) == 1 and EntryKind.ENDED not in scene.entries
    refusal.on = False
    scene.step()
    assert scene.run.state is RunState.FINISHED and not scene.attempt.blocked


def test_a_finished_attempt_that_cannot_be_fenced_for_too_long_is_accepted_nevertheless(
    scene: Scene, refusal: Refusal
) -> None:
    scene.log_end(Outcome.FINISHED)
    scene.list(JobPhase.ENDED, exit_code=0)
    scene.until_over(PATIENCE.longest_pause + 5 * INTERVAL)
    assert scene.run.state is RunState.FINISHED
    assert (scene.experiment.result("r") / "model").read_text() == "abc"


def test_the_same_error_of_files_twice_fails_the_run_with_path_cause_and_command(
    scene: Scene, refusal: Refusal
) -> None:
    first = scene.directory
    scene.list(JobPhase.ENDED, exit_code=1)
    while scene.attempt.outcome is None:
        scene.step()
    text = "its files cannot be read or written: %s: refused for the test" % first
    assert (scene.attempt.outcome, scene.attempt.detail) == (Outcome.NODE_TROUBLE, text)
    assert not scene.run.state.over, "another directory may work"
    second = scene.start()
    scene.list(JobPhase.ENDED, exit_code=1)
    scene.until_over(PATIENCE.longest_pause + 10 * INTERVAL)
    assert scene.run.state is RunState.FAILED
    assert "%s: refused for the test. Repair this, then `outlast retry r`" % second in scene.run.reason


def test_a_run_whose_files_cannot_be_written_can_be_cancelled(scene: Scene, refusal: Refusal) -> None:
    scene.list(JobPhase.ENDED, exit_code=1)
    scene.step()
    scene.cancel()
    scene.until_over(PATIENCE.missing + 3 * INTERVAL)
    assert (scene.run.state, scene.run.reason) == (RunState.CANCELLED, "cancelled by the user")


def test_a_run_whose_files_are_gone_can_be_cancelled(scene: Scene) -> None:
    shutil.rmtree(scene.experiment.params)
    scene.cancel()
    scene.step()
    scene.list(JobPhase.ENDED, exit_code=1)
    scene.step()
    assert (scene.run.state, scene.run.reason) == (RunState.CANCELLED, "cancelled by the user")
    assert scene.attempt.outcome is Outcome.CANCELLED


def test_jobs_whose_files_cannot_be_written_are_tried_for_a_while_and_then_fail_the_run(
    scene: Scene,
) -> None:
    scene.log_end(Outcome.CONTINUE)
    shutil.rmtree(scene.experiment.logs)
    scene.experiment.logs.write_text("not a directory")
    scene.list(JobPhase.ENDED, exit_code=85)
    began = scene.now
    scene.until_over(3 * PATIENCE.longest_pause)
    assert scene.now - began > PATIENCE.longest_pause, "it may have passed"
    assert str(scene.experiment.logs) in scene.run.reason and "`outlast retry r`" in scene.run.reason


def test_a_lost_program_is_built_again_for_the_next_job(scene: Scene) -> None:
    program = scene.experiment.root / "outlast.pyz"
    program.unlink()
    scene.log_end(Outcome.CONTINUE)
    scene.list(JobPhase.ENDED, exit_code=85)
    scene.step()
    assert scene.attempt.number == 2 and program.stat().st_size


# Results.


def unpublishable(scene: Scene) -> None:
    """Finish the training while the directory of results is a file."""
    scene.experiment.results.write_text("not a directory")
    scene.log_end(Outcome.FINISHED)
    scene.list(JobPhase.ENDED, exit_code=0)
    scene.step()
    assert scene.run.state is RunState.ACCEPTED
    assert str(scene.experiment.results) in scene.attempt.blocked


def test_results_that_cannot_be_published_fail_the_run_and_a_retry_publishes_them(scene: Scene) -> None:
    unpublishable(scene)
    scene.until_over(PATIENCE.longest_pause + 3 * INTERVAL)
    assert scene.run.state is RunState.FAILED
    for part in (str(scene.experiment.results), str(scene.directory), "`outlast retry r` publishes them"):
        assert part in scene.run.reason
    assert not scene.attempt.blocked
    scene.experiment.results.unlink()
    scene.records.append([JournalEntry(scene.now, "r", EntryKind.RETRIED, None, {"spec": 1})])
    scene.step()
    assert scene.run.state is RunState.FINISHED and scene.attempt.number == 1
    assert (scene.experiment.result("r") / "model").read_text() == "abc"


def test_a_run_whose_results_cannot_be_published_can_be_cancelled(scene: Scene) -> None:
    unpublishable(scene)
    scene.cancel()
    scene.until_over(PATIENCE.missing + 3 * INTERVAL)
    assert scene.run.state is RunState.CANCELLED
    assert str(scene.directory) in scene.run.reason


def test_results_that_disappeared_are_computed_again_by_a_retry(scene: Scene) -> None:
    unpublishable(scene)
    shutil.rmtree(scene.directory)
    scene.experiment.results.unlink()
    scene.step()
    assert scene.run.state is RunState.FAILED and "`outlast retry r` computes it again" in scene.run.reason
    scene.records.append([JournalEntry(scene.now, "r", EntryKind.RETRIED, None, {"spec": 1})])
    scene.cluster.jobs = {}
    scene.start()
    assert scene.attempt.number == 2
