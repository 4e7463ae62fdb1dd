"""Observe, decide, act, with a scheduler and an exchange that are told what to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from outlast import controller as controller_module
from outlast.controller import Controller
from outlast.crashpoints import CRASH_POINTS
from outlast.exchange import ResultGone
from outlast.model import Attempt, AttemptState, Entry, Kind, Limits, Outcome, Phase, Run, RunState, Spec
from outlast.observation import JobPhase, JobView, Patience, Report
from outlast.schedulers.base import Answer, JobRequest, Scheduler, SchedulerUnavailable, Submission
from outlast.simulation.schedule import KeptRecords


class Fake(Scheduler):
    patience = Patience(missing=60.0, heartbeat=30.0, pause=10.0)

    def __init__(self) -> None:
        self.answer = Submission(Answer.ACCEPTED, job="17")
        self.jobs: dict[str, JobView] = {}
        self.down = False
        self.submitted: list[list[str]] = []
        self.cancelled: list[str] = []
        self.forgotten: list[str] = []

    def render(self, request: JobRequest) -> str:
        return request.name

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        self.submitted.append([request.token for request in requests])
        return {request.token: self.answer for request in requests}

    def poll(self) -> Mapping[str, JobView]:
        if self.down:
            raise SchedulerUnavailable("no answer")
        return dict(self.jobs)

    def cancel(self, views: Sequence[JobView]) -> None:
        if self.down:
            raise SchedulerUnavailable("no answer")
        self.cancelled += [view.token for view in views]

    def forget(self, tokens: Sequence[str]) -> None:
        self.forgotten += tokens


@dataclass
class Desk:
    """An exchange."""

    reports: dict[str, Report] = field(default_factory=dict)
    fence_wins: bool = True
    gone: bool = False
    stuck: str = ""
    order_fails: bool = False
    published: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        if self.order_fails:
            raise OSError(28, "No space left on device")

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        return JobRequest(attempt.token, run.name, "", "", "", 1, 0, 0, 0, 60.0, 5.0)

    def fence(self, attempt: Attempt) -> bool:
        return self.fence_wins

    def report(self, attempt: Attempt) -> Report | None:
        return self.reports.get(attempt.token)

    def publish(self, attempt: Attempt) -> None:
        if self.gone:
            raise ResultGone("it has disappeared")
        if attempt.run == self.stuck:
            raise OSError(13, "Permission denied", "results")
        self.published.append(attempt.token)

    def retire(self, run: Run) -> None:
        self.retired.append(run.name)


class World:
    def __init__(self, runs: int = 1, parallel: int | None = None) -> None:
        self.now = 1000.0
        self.records = KeptRecords(lambda entry: None)
        self.scheduler, self.desk = Fake(), Desk()
        spec = self.records.add_spec(Spec("s", "train", parallel=parallel, limits=Limits(total=1e6)))
        data = [{"position": number, "spec": spec} for number in range(runs)]
        self.records.append([Entry(self.now, "r%d" % d["position"], Kind.ADDED, None, d) for d in data])
        self.tokens = iter("t%d" % number for number in range(1000))
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        return Controller(
            self.records,
            self.scheduler,
            self.desk,
            clock=lambda: self.now,
            new_token=lambda: next(self.tokens),
        )

    def run(self, name: str = "r0") -> Run:
        run = self.records.run(name)
        assert run is not None
        return run

    def attempt(self, token: str = "t0") -> Attempt:
        attempt = self.records.attempt(token)
        assert attempt is not None
        return attempt

    def kinds(self) -> list[Kind]:
        return [entry.kind for entry in self.records.entries]

    def list(self, phase: JobPhase, token: str = "t0") -> None:
        over = {"ended": self.now, "elapsed": 50.0, "exit_code": 0} if phase is JobPhase.ENDED else {}
        self.scheduler.jobs[token] = JobView(token, "17", phase, "node1", started=900.0, **over)  # type: ignore[arg-type]

    def end(self, outcome: Outcome, token: str = "t0") -> None:
        self.list(JobPhase.ENDED, token)
        spans = ((Phase.COMPUTE, 40.0),)
        self.desk.reports[token] = Report(heard=self.now, spans=spans, outcome=outcome, detail="said")


@pytest.fixture
def world() -> World:
    return World()


def test_the_intent_is_committed_before_the_scheduler_is_called(world: World) -> None:
    seen: list[AttemptState] = []
    send = world.scheduler.submit

    def watched(requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        seen.extend(world.attempt(request.token).state for request in requests)
        return send(requests)

    world.scheduler.submit = watched  # type: ignore[method-assign]
    world.controller.step()
    assert seen == [AttemptState.INTENDED]
    assert world.attempt().state is AttemptState.QUEUED and world.attempt().job == "17"


@pytest.mark.parametrize(
    ("answer", "state", "outcome"),
    [
        (Submission(Answer.UNKNOWN, reason="timed out"), AttemptState.UNSURE, None),
        (Submission(Answer.REJECTED, reason="full", transient=True), AttemptState.ENDED, Outcome.REJECTED),
    ],
)
def test_every_answer_of_the_scheduler_is_recorded(
    world: World, answer: Submission, state: AttemptState, outcome: Outcome | None
) -> None:
    world.scheduler.answer = answer
    world.controller.step()
    assert (world.attempt().state, world.attempt().outcome) == (state, outcome)


def test_a_token_that_the_scheduler_is_silent_about_is_unknown(world: World) -> None:
    world.scheduler.submit = lambda requests: {}  # type: ignore[method-assign]
    world.controller.step()
    assert world.attempt().state is AttemptState.UNSURE


def test_a_refusal_for_good_fails_the_run_with_the_schedulers_words(world: World) -> None:
    world.scheduler.answer = Submission(Answer.REJECTED, reason="no such partition")
    world.controller.step()
    world.controller.step()
    assert world.run().state is RunState.FAILED and "no such partition" in world.run().reason


def test_an_order_that_cannot_be_written_is_tried_again_later(world: World) -> None:
    world.desk.order_fails = True
    world.controller.step()
    assert world.attempt().outcome is Outcome.REJECTED and "No space left" in world.attempt().detail
    assert not world.scheduler.submitted
    world.desk.order_fails = False
    world.controller.step()
    assert not world.scheduler.submitted  # the pause
    world.now += 11.0
    world.controller.step()
    assert world.scheduler.submitted == [["t1"]]


def test_a_scheduler_that_does_not_answer_changes_nothing(world: World) -> None:
    world.controller.step()
    before = world.kinds()
    world.scheduler.down = True
    world.now += 1e5
    done = world.controller.step()
    assert (done.jobs, done.trouble, done.entries) == (None, "no answer", 0)
    assert world.kinds() == before


def test_a_finished_attempt_is_accepted_published_and_finished_in_one_pass(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    world.end(Outcome.FINISHED)
    world.controller.step()
    assert world.kinds()[-4:] == [Kind.STARTED, Kind.ENDED, Kind.ACCEPTED, Kind.FINISHED]
    assert (world.desk.published, world.desk.retired) == (["t0"], ["r0"])
    assert world.scheduler.forgotten == ["t0"] and world.controller.done
    assert "attempt 1" in world.run().reason


def test_a_result_that_disappeared_fails_the_run_with_that_reason(world: World) -> None:
    world.desk.gone = True
    world.controller.step()
    world.end(Outcome.FINISHED)
    world.controller.step()
    assert world.run().state is RunState.FAILED and "disappeared" in world.run().reason


def test_the_next_attempt_is_started_in_the_pass_that_saw_the_end(world: World) -> None:
    world.controller.step()
    world.end(Outcome.CONTINUE)
    world.controller.step()
    assert world.scheduler.submitted == [["t0"], ["t1"]]
    assert world.attempt("t1").number == 2 and "continue" in world.attempt("t1").reason


def test_a_missing_job_is_fenced_before_another_is_started(world: World) -> None:
    world.scheduler.answer = Submission(Answer.UNKNOWN, reason="timed out")
    fenced: list[int] = []
    world.desk.fence = lambda attempt: not fenced.append(len(world.scheduler.submitted))  # type: ignore[method-assign,func-returns-value]
    for _ in range(3):
        world.controller.step()
        world.now += 61.0
    assert fenced == [1]
    assert world.attempt().outcome is Outcome.LOST
    world.controller.step()
    assert len(world.scheduler.submitted) == 2


def test_a_job_that_claimed_in_time_is_not_given_up(world: World) -> None:
    world.desk.fence_wins = False
    world.scheduler.answer = Submission(Answer.UNKNOWN)
    world.controller.step()
    for _ in range(5):
        world.now += 61.0
        world.desk.reports["t0"] = Report(heard=world.now)
        world.controller.step()
    assert world.attempt().state is AttemptState.UNSURE and len(world.scheduler.submitted) == 1


def test_a_late_twin_is_cancelled_booked_and_forgotten(world: World) -> None:
    world.scheduler.answer = Submission(Answer.UNKNOWN)
    for _ in range(3):
        world.controller.step()
        world.now += 61.0
    world.list(JobPhase.RUNNING)
    world.controller.step()
    assert world.scheduler.cancelled == ["t0"] and world.attempt().twin
    world.list(JobPhase.ENDED)
    world.controller.step()
    assert (world.attempt().twin, world.attempt().twin_slot) == (False, 50.0)
    assert world.scheduler.forgotten == ["t0"]
    for _ in range(3):
        world.controller.step()
    assert world.kinds().count(Kind.TWIN_ENDED) == 1


def test_a_twin_that_could_not_be_cancelled_is_met_again(world: World) -> None:
    world.scheduler.answer = Submission(Answer.UNKNOWN)
    for _ in range(3):
        world.controller.step()
        world.now += 61.0
    world.list(JobPhase.RUNNING)

    def fail(views: Sequence[JobView]) -> None:
        raise SchedulerUnavailable("no answer")

    cancel = world.scheduler.cancel
    world.scheduler.cancel = fail  # type: ignore[method-assign]
    assert world.controller.step().trouble and not world.attempt().twin
    world.scheduler.cancel = cancel  # type: ignore[method-assign]
    world.controller.step()
    assert world.scheduler.cancelled == ["t0"]


def test_a_job_that_no_attempt_knows_of_is_cancelled(world: World) -> None:
    world.list(JobPhase.QUEUED, "stranger")
    world.controller.step()
    assert world.scheduler.cancelled == ["stranger"]


def test_a_cancelled_run_ends_when_its_job_has(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    world.records.append([Entry(world.now, "r0", Kind.CANCEL_ASKED, None, {"reason": "enough"})])
    world.controller.step()
    assert world.scheduler.cancelled == ["t0"] and world.run().state is RunState.ACTIVE
    world.end(Outcome.EVICTED)
    world.controller.step()
    assert (world.run().state, world.run().reason) == (RunState.CANCELLED, "enough")


def test_at_most_parallel_runs_are_under_way_and_begun_ones_come_first() -> None:
    world = World(runs=4, parallel=2)
    world.controller.step()
    assert world.scheduler.submitted == [["t0", "t1"]]
    world.end(Outcome.CONTINUE, "t1")
    world.controller.step()
    active = [run.name for run in world.records.live().values() if run.state is RunState.ACTIVE]
    assert active == ["r0", "r1"]


def test_after_its_budget_a_pass_starts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "BATCH", 2)
    world = World(runs=5)
    done = world.controller.step(budget=-1.0)
    assert (done.put_off, world.scheduler.submitted) == (5, [])
    world.controller.step()
    assert [len(batch) for batch in world.scheduler.submitted] == [2, 2, 1]


def test_the_named_points_of_a_chain_are_reached_in_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    monkeypatch.setattr(controller_module, "reach", reached.append)
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    world.end(Outcome.FINISHED)
    world.controller.step()
    assert set(reached) <= set(CRASH_POINTS)
    firsts = [point for point in dict.fromkeys(reached) if point.split(".")[0] != "observe"]
    assert firsts == [
        "start.intended",
        "start.ordered",
        "start.submitted",
        "start.recorded",
        "accept.recorded",
        "accept.published",
        "accept.finished",
    ]


class Died(BaseException):
    pass


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point.startswith(("start", "accept"))])
def test_dying_at_a_point_submits_nothing_twice_and_finishes_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The job of the first attempt exists from its submission on, whatever the journal says."""
    armed = [point]

    def die(reached: str) -> None:
        if armed and reached == armed[0]:
            armed.clear()
            raise Died

    monkeypatch.setattr(controller_module, "reach", die)
    submit = world.scheduler.submit

    def queue(requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        for request in requests:
            world.list(JobPhase.RUNNING, request.token)
        return submit(requests)

    world.scheduler.submit = queue  # type: ignore[method-assign]
    until(world, lambda: bool(world.scheduler.submitted) and world.run().current is not None)
    token = world.run().current or ""
    until(world, lambda: world.attempt(token).state is AttemptState.RUNNING)
    world.end(Outcome.FINISHED, token)
    until(world, lambda: world.controller.done)
    assert not armed
    assert world.run().state is RunState.FINISHED and set(world.desk.published) == {token}
    assert len(world.scheduler.submitted) == 1
    assert len(world.records.all_attempts()) == (1 if point not in BEFORE else 2)


#: At these the scheduler knows nothing yet: the attempt is given up and another one takes its place.
BEFORE = ("start.intended", "start.ordered")


def until(world: World, reached: Callable[[], bool]) -> None:
    for _ in range(20):
        if reached():
            return
        try:
            world.controller.step()
        except Died:
            world.controller = world.new_controller()
        world.now += 30.0
    pytest.fail("not reached after 20 passes: %s" % [kind.value for kind in world.kinds()])


def test_the_listener_hears_every_entry(world: World) -> None:
    heard: list[Entry] = []
    listening = Controller(world.records, world.scheduler, world.desk, listener=heard.extend)
    listening.step()
    assert heard == world.records.entries[1:]


def test_an_avoided_host_is_asked_for_but_never_all_of_them(world: World) -> None:
    world.scheduler.hosts = lambda: ("node1", "node2")  # type: ignore[method-assign]
    world.controller.step()
    world.end(Outcome.STALLED)
    world.controller.step()
    world.now += 11.0
    world.controller.step()
    assert world.attempt("t1").avoid == ("node1",)
    view = replace(world.scheduler.jobs["t0"], token="t1", host="node2")
    world.scheduler.jobs["t1"] = view
    world.desk.reports["t1"] = world.desk.reports["t0"]
    world.controller.step()
    world.now += 21.0
    world.controller.step()
    assert world.attempt("t2").avoid == ("node2",)


def test_a_result_that_cannot_be_published_does_not_hold_up_the_other_runs() -> None:
    world = World(runs=2)
    world.controller.step()
    world.end(Outcome.FINISHED, "t0")
    world.end(Outcome.FINISHED, "t1")
    world.desk.stuck = "r0"
    done = world.controller.step()
    assert (world.run("r0").state, world.run("r1").state) == (RunState.ACCEPTED, RunState.FINISHED)
    assert "Permission denied" in done.notes[0]
    world.desk.stuck = ""
    world.controller.step()
    assert world.run("r0").state is RunState.FINISHED


def test_nothing_is_sent_to_a_scheduler_that_does_not_answer(world: World) -> None:
    world.scheduler.down = True
    for _ in range(3):
        world.controller.step()
    assert world.scheduler.submitted == [] and world.run().attempts == 0
    world.scheduler.down = False
    world.controller.step()
    assert world.run().state is RunState.ACTIVE


def test_a_rejected_job_that_runs_all_the_same_is_not_believed_to_be_rejected(world: World) -> None:
    world.scheduler.answer = Submission(Answer.REJECTED, reason="timed out", transient=True)
    world.desk.fence_wins = False
    world.controller.step()
    assert world.attempt().state is AttemptState.UNSURE
    world.list(JobPhase.RUNNING)
    world.controller.step()
    assert world.attempt().state is AttemptState.RUNNING and len(world.scheduler.submitted) == 1


def test_a_job_that_turns_up_after_its_rejection_is_cancelled(world: World) -> None:
    world.scheduler.answer = Submission(Answer.REJECTED, reason="no", transient=True)
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    assert world.scheduler.cancelled == ["t0"]
