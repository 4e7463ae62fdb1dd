"""Jobs of a real HTCondor pool that share no file system: what survives which kind of end."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.htcondor_harness import HTCondorRehearsal
from outlast.domain.model import Attempt, AttemptState, Outcome, Resources, Run, RunState, Spec
from outlast.domain.observation import JobPhase, Report
from outlast.exchange import zipapp
from outlast.exchange.experiment import Experiment
from outlast.exchange.sandbox_exchange import SandboxExchange
from outlast.node.order import OutputRule
from outlast.node.sandbox import layout
from outlast.schedulers.base import Sought, SubmitAnswer
from outlast.schedulers.profile import Profile
from outlast.training.checkpoints import checkpoint_names

pytestmark = pytest.mark.slow

#: Goes one step for every `go-N` it finds, saves each, and leaves when told to.
TRAINING = """
    import os, pathlib, sys, time, outlast
    control = pathlib.Path(sys.argv[1])
    state = outlast.load() or {"step": 0}
    # As some training libraries do; HTCondor takes nothing at all of a directory with such a link in it.
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


class Course:
    """One attempt on the pool, whose training a test leads step by step."""

    def __init__(self, directory: Path, pool: HTCondorRehearsal, commit: str, every: float = 0.5) -> None:
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
        pool.scheduler = pool.another_adapter(profile=self.exchange.site)
        self.spec = Spec(
            name="course",
            command="%s %s %s" % (sys.executable, script, self.control),
            resources=Resources(memory=10**8, disk=10**8, time=300.0),
            outputs=(OutputRule("weights.txt"),),
        )
        self.attempt = self.send(1)

    def send(self, number: int) -> Attempt:
        run = Run("course", 0, 1, {}, RunState.ACTIVE, added=0.0, since=0.0)
        attempt = Attempt(
            "course", number, "%s%02d-1" % (self.pool.group[-8:], number), AttemptState.INTENDED, 0.0
        )
        self.exchange.write_order(run, attempt, self.spec)
        request = self.exchange.request(run, attempt, self.spec)
        told = self.pool.scheduler.submit([request])[attempt.token]
        assert told.answer is SubmitAnswer.ACCEPTED, told.reason
        return attempt

    @property
    def home(self) -> Path:
        return self.experiment.exchange_of(self.attempt)

    def await_that(self, what: Callable[[], object], doing: str) -> None:
        until = time.monotonic() + self.pool.patience
        while not what():
            assert time.monotonic() < until, "%s: %s" % (doing, self.pool.scheduler.poll())
            time.sleep(0.05)

    def go(self, *steps: int) -> None:
        for step in steps:
            (self.control / ("go-%d" % step)).touch()
            self.await_that((self.control / ("saved-%d" % step)).exists, "step %d" % step)

    def resumed(self) -> list[int]:
        path = self.control / "resumed"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def await_start(self, number: int) -> None:
        self.await_that(lambda: len(self.resumed()) >= number, "start %d" % number)

    def committed(self) -> int:
        found = layout.newest_commit(str(self.home))
        names = {name.split("/")[1] for name in found[1].files} if found else set()
        return max(
            (int(name.split("-")[1]) for name in names if checkpoint_names.is_checkpoint(name)), default=0
        )

    def evict(self, fast: bool) -> None:
        self.pool.evict(self.attempt.token, fast)

    def end(self) -> Report:
        sought = [Sought(self.attempt.token, "", time.time())]

        def ended() -> bool:
            view = self.pool.scheduler.poll(sought).get(self.attempt.token)
            return view is not None and view.phase is JobPhase.ENDED

        self.await_that(ended, "the end")
        report = self.exchange.report(self.attempt)
        assert report is not None
        self.exchange.settle(self.attempt)
        return report

    def checkpoints(self) -> list[int]:
        place = self.experiment.checkpoints("course")
        return sorted(int(path.name.split("-")[1]) for path in place.glob("step-*"))


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HTCondorRehearsal]:
    place = tmp_path / "pool"
    place.mkdir()
    rehearsal = HTCondorRehearsal(place)
    yield rehearsal
    rehearsal.close()


def test_what_was_committed_over_chirp_survives_a_kill_without_warning(
    tmp_path: Path, pool: HTCondorRehearsal
) -> None:
    course = Course(tmp_path, pool, "chirp")
    course.go(1, 2)
    course.await_that(lambda: course.committed() == 2, "a commit")
    assert not (course.home / layout.TRAVEL).exists()
    asked = ("condor_q", pool.job(course.attempt.token), "-af", "ChirpOutlastStep")
    course.await_that(lambda: pool.tool(*asked).strip() == "2", "live progress in the queue")
    course.evict(fast=True)
    course.await_start(2)
    assert course.resumed() == [0, 2]
    course.go(3)
    course.await_that(lambda: course.committed() == 3, "another commit")
    course.pool.kill_starter(course.attempt.token)
    course.await_start(3)
    assert course.resumed() == [0, 2, 3]
    course.go(4)
    report = course.end()
    assert report.outcome is Outcome.FINISHED
    assert [leg.outcome for leg in report.legs] == [None, None, Outcome.FINISHED]
    course.exchange.publish(course.attempt)
    assert (course.experiment.result("course") / "weights.txt").read_text() == "4"
    assert course.checkpoints()[-1] == 4
    assert course.experiment.log("course", 1).read_text().split("\n")[:4] == [
        "step 1",
        "step 2",
        "step 3",
        "step 4",
    ]


def test_what_was_saved_at_a_soft_eviction_survives_it_and_a_later_kill(
    tmp_path: Path, pool: HTCondorRehearsal
) -> None:
    course = Course(tmp_path, pool, "never")
    course.go(1, 2)
    course.evict(fast=False)
    course.await_start(2)
    assert course.resumed() == [0, 2]
    course.go(3)
    course.evict(fast=True)
    course.await_start(3)
    assert course.resumed() == [0, 2, 2]
    course.go(4)
    report = course.end()
    assert report.outcome is Outcome.FINISHED
    assert [leg.outcome for leg in report.legs] == [Outcome.EVICTED, Outcome.FINISHED]


def test_without_chirp_the_job_restarts_in_place_so_that_its_checkpoints_get_out(
    tmp_path: Path, pool: HTCondorRehearsal
) -> None:
    course = Course(tmp_path, pool, "restart")
    course.go(1)
    course.await_start(2)
    assert course.resumed() == [0, 1]
    course.evict(fast=True)
    course.await_start(3)
    assert course.resumed() == [0, 1, 1]
    course.go(2, 3, 4)
    report = course.end()
    assert report.outcome is Outcome.FINISHED
    assert report.earlier[0].outcome is Outcome.CONTINUE


def test_the_next_job_goes_on_from_what_a_cancelled_one_had_committed(
    tmp_path: Path, pool: HTCondorRehearsal
) -> None:
    course = Course(tmp_path, pool, "auto")
    course.go(1, 2)
    course.await_that(lambda: course.committed() == 2, "a commit")
    views = pool.scheduler.poll([Sought(course.attempt.token, "", time.time())])
    pool.scheduler.cancel([views[course.attempt.token]])
    report = course.end()
    assert report.outcome is None, "nothing but the news that it had sent is here"
    assert course.checkpoints() == [1, 2]
    course.attempt = course.send(2)
    course.await_start(2)
    assert course.resumed() == [0, 2]
    course.go(3, 4)
    assert course.end().outcome is Outcome.FINISHED
