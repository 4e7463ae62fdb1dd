"""Checkpoints of jobs in a real HTCondor pool without a shared file system survive each kind of end."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.htcondor_harness import HTCondorHarness
from outlast.domain import outcomes
from outlast.domain.model import Attempt, AttemptState, Outcome, Resources, Run, RunState, Spec
from outlast.domain.observation import JobPhase, JobView, Report
from outlast.exchange import zipapp
from outlast.exchange.experiment import Experiment
from outlast.exchange.sandbox_exchange import SandboxExchange
from outlast.node.output_rule import OutputRule
from outlast.node.sandbox import layout
from outlast.schedulers.base import JobRef, SubmitStatus
from outlast.schedulers.profile import Profile
from outlast.training.checkpoints import checkpoint_names

pytestmark = pytest.mark.slow

#: Does one step for each file `go-N`, saves it, and exits when it must stop.
TRAINING = """
    import os, pathlib, sys, time, outlast
    control = pathlib.Path(sys.argv[1])
    state = outlast.load() or {"step": 0}
    # As some training libraries do; HTCondor transfers nothing from a directory with such a link.
    place = pathlib.Path(os.environ["OUTLAST_CHECKPOINT_DIR"])
    (place / "epoch").mkdir(exist_ok=True)
    (place / "epoch" / "of").write_text(str(state["step"]))
    if state["step"] and os.readlink(place / "last") != "epoch":
        sys.exit("the link is lost")
    if not (place / "last").is_symlink():
        (place / "last").symlink_to("epoch")
    with open(control / "resumed", "a") as file:
        file.write("%d\\n" % state["step"])
    while state["step"] < 4:
        ahead = state["step"] + 1
        while not (control / ("go-%d" % ahead)).exists():
            if outlast.should_stop():
                outlast.save(state, state["step"])
                outlast.leave()
            time.sleep(0.02)
        state["step"] = ahead
        outlast.progress(ahead, 4)
        outlast.save(state, ahead)
        (control / ("saved-%d" % ahead)).touch()
        print("step", ahead)
    pathlib.Path("weights.txt").write_text(str(state["step"]))
"""


class SteppedAttempt:
    """An attempt on the pool whose training script waits for the test before each step."""

    def __init__(self, directory: Path, pool: HTCondorHarness, commit: str, every: float = 0.5) -> None:
        self.pool = pool
        self.control = directory / "control"
        self.control.mkdir(mode=0o777)
        script = directory / "train.py"
        script.write_text(textwrap.dedent(TRAINING))
        self.experiment = Experiment(directory / "experiment")
        program = self.experiment.zipapp(zipapp.digest())
        program.parent.mkdir(parents=True)
        zipapp.build(program)
        self.exchange = SandboxExchange(
            self.experiment, program, Profile(commit=commit, commit_every=every, python=sys.executable)
        )
        pool.scheduler = pool.another_adapter(profile=self.exchange.site, place=self.experiment.params)
        self.spec = Spec(
            name="course",
            command="%s %s %s" % (sys.executable, script, self.control),
            resources=Resources(memory=10**8, disk=10**8, time=300.0),
            outputs=(OutputRule("weights.txt"),),
        )
        self.attempt = self.send(1)

    def send(self, number: int) -> Attempt:
        """Submit an attempt with this number."""
        run = Run("course", 0, 1, {}, RunState.ACTIVE, added=0.0, since=0.0)
        attempt = Attempt(
            "course", number, "%s%02d-1" % (self.pool.group[-8:], number), AttemptState.INTENDED, 0.0
        )
        self.exchange.write_order(run, attempt, self.spec)
        request = self.exchange.request(run, attempt, self.spec)
        result = self.pool.scheduler.submit([request])[attempt.token]
        assert result.status is SubmitStatus.ACCEPTED, result.reason
        return attempt

    @property
    def home(self) -> Path:
        return self.experiment.exchange_of(self.attempt)

    def wait_for(self, what: Callable[[], object], doing: str) -> None:
        """Wait until `what` is true; `doing` describes it in the error."""
        until = time.monotonic() + self.pool.patience
        while not what():
            assert time.monotonic() < until, "%s: %s" % (doing, self.pool.scheduler.poll())
            time.sleep(0.05)

    def go(self, *steps: int) -> None:
        """Let the training script do these steps, and wait until they are saved."""
        for step in steps:
            (self.control / ("go-%d" % step)).touch()
            self.wait_for((self.control / ("saved-%d" % step)).exists, "step %d" % step)

    def resumed(self) -> list[int]:
        """Return the step from which each start resumed."""
        path = self.control / "resumed"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def await_start(self, number: int) -> None:
        self.wait_for(lambda: len(self.resumed()) >= number, "start %d" % number)

    def committed(self) -> int:
        """Return the newest committed step; 0 if there is none."""
        found = layout.newest_commit(str(self.home))
        names = {name.split("/")[1] for name in found[1].files} if found else set()
        return max(
            (int(name.split("-")[1]) for name in names if checkpoint_names.is_checkpoint(name)), default=0
        )

    def evict(self, fast: bool) -> None:
        self.pool.evict(self.attempt.token, fast)

    def view(self) -> JobView:
        return self.pool.scheduler.poll([JobRef(self.attempt.token, "", time.time())])[self.attempt.token]

    def cancel(self) -> None:
        self.pool.scheduler.cancel([self.view()])

    def end(self) -> Report:
        """Wait until the job has ended, and return its report."""
        expected = [JobRef(self.attempt.token, "", time.time())]

        def ended() -> bool:
            view = self.pool.scheduler.poll(expected).get(self.attempt.token)
            return view is not None and view.phase is JobPhase.ENDED

        self.wait_for(ended, "the end")
        report = self.exchange.report(self.attempt)
        assert report is not None
        self.exchange.settle(self.attempt)
        return report

    def checkpoints(self) -> list[int]:
        place = self.experiment.checkpoints("course")
        return sorted(int(path.name.split("-")[1]) for path in place.glob("step-*"))


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HTCondorHarness]:
    place = tmp_path / "pool"
    place.mkdir()
    harness = HTCondorHarness(place)
    yield harness
    harness.close()


def test_checkpoints_committed_over_chirp_survive_a_kill_without_warning(
    tmp_path: Path, pool: HTCondorHarness
) -> None:
    stepped = SteppedAttempt(tmp_path, pool, "chirp")
    stepped.go(1, 2)
    stepped.wait_for(lambda: stepped.committed() == 2, "a commit")
    assert not (stepped.home / layout.TRAVEL).exists()
    query = ("condor_q", pool.job(stepped.attempt.token), "-af", "ChirpOutlastStep")
    stepped.wait_for(lambda: pool.tool(*query).strip() == "2", "live progress in the queue")
    stepped.evict(fast=True)
    stepped.await_start(2)
    assert stepped.resumed() == [0, 2]
    stepped.go(3)
    stepped.wait_for(lambda: stepped.committed() == 3, "another commit")
    stepped.pool.kill_starter(stepped.attempt.token)
    stepped.await_start(3)
    assert stepped.resumed() == [0, 2, 3]
    stepped.go(4)
    report = stepped.end()
    assert outcomes.of_leg(report) is Outcome.FINISHED
    assert [outcomes.of_leg(leg) for leg in report.legs] == [None, None, Outcome.FINISHED]
    stepped.exchange.publish(stepped.attempt)
    assert (stepped.experiment.result("course") / "weights.txt").read_text() == "4"
    assert stepped.checkpoints()[-1] == 4
    assert stepped.experiment.log("course", 1).read_text().split("\n")[:4] == [
        "step 1",
        "step 2",
        "step 3",
        "step 4",
    ]


def test_a_checkpoint_saved_at_a_soft_eviction_survives_it_and_a_later_kill(
    tmp_path: Path, pool: HTCondorHarness
) -> None:
    stepped = SteppedAttempt(tmp_path, pool, "never")
    stepped.go(1, 2)
    stepped.evict(fast=False)
    stepped.await_start(2)
    assert stepped.resumed() == [0, 2]
    stepped.go(3)
    stepped.evict(fast=True)
    stepped.await_start(3)
    assert stepped.resumed() == [0, 2, 2]
    stepped.go(4)
    report = stepped.end()
    assert outcomes.of_leg(report) is Outcome.FINISHED
    assert [outcomes.of_leg(leg) for leg in report.legs] == [Outcome.EVICTED, Outcome.FINISHED]


def test_without_chirp_the_job_restarts_in_place_so_that_its_checkpoints_are_transferred(
    tmp_path: Path, pool: HTCondorHarness
) -> None:
    stepped = SteppedAttempt(tmp_path, pool, "restart")
    stepped.go(1)
    stepped.await_start(2)
    assert stepped.resumed() == [0, 1]
    stepped.evict(fast=True)
    stepped.await_start(3)
    assert stepped.resumed() == [0, 1, 1]
    stepped.go(2, 3, 4)
    report = stepped.end()
    assert outcomes.of_leg(report) is Outcome.FINISHED
    assert outcomes.of_leg(report.earlier[0]) is Outcome.CONTINUE


def test_the_next_job_resumes_from_what_a_cancelled_one_had_committed(
    tmp_path: Path, pool: HTCondorHarness
) -> None:
    stepped = SteppedAttempt(tmp_path, pool, "chirp")
    stepped.go(1, 2)
    stepped.wait_for(lambda: stepped.committed() == 2, "a commit")
    stepped.cancel()
    report = stepped.end()
    assert outcomes.of_leg(report) is None, "only what it had committed is here"
    assert stepped.checkpoints() == [1, 2]
    stepped.attempt = stepped.send(2)
    stepped.await_start(2)
    assert stepped.resumed() == [0, 2]
    stepped.go(3, 4)
    assert outcomes.of_leg(stepped.end()) is Outcome.FINISHED


@pytest.mark.parametrize("held", [False, True])
def test_the_next_job_resumes_from_the_last_restart_of_a_cancelled_one(
    tmp_path: Path, pool: HTCondorHarness, held: bool
) -> None:
    stepped = SteppedAttempt(tmp_path, pool, "auto")
    stepped.go(1)
    stepped.await_start(2)
    stepped.go(2)
    stepped.await_start(3)
    if held:
        pool.tool("condor_hold", pool.job(stepped.attempt.token))
        stepped.wait_for(lambda: stepped.view().phase is not JobPhase.RUNNING, "the hold")
    stepped.cancel()
    report = stepped.end()
    assert outcomes.of_leg(report.legs[0]) is Outcome.CONTINUE
    assert set(stepped.checkpoints()) == {1, 2}
    stepped.attempt = stepped.send(2)
    stepped.await_start(4)
    assert stepped.resumed() == [0, 1, 2, 2]
    stepped.go(3, 4)
    assert outcomes.of_leg(stepped.end()) is Outcome.FINISHED
