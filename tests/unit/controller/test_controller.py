"""Observe, decide, act, with a fake scheduler and a fake exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from outlast.controller import crashpoints
from outlast.controller.controller import Controller
from outlast.controller.crashpoints import CRASH_POINTS
from outlast.domain.decision import Decision
from outlast.domain.model import (
    Attempt,
    AttemptState,
    Cause,
    EntryKind,
    JournalEntry,
    Limits,
    Outcome,
    Phase,
    Run,
    RunState,
    Spec,
)
from outlast.domain.observation import JobPhase, JobView, Patience, Removal, Report
from outlast.exchange.base import Publication, ResultGone
from outlast.schedulers.base import (
    JobRef,
    JobRequest,
    Scheduler,
    SchedulerUnavailable,
    Submission,
    SubmitStatus,
)
from outlast.simulation.schedule import KeptRecords


class FakeScheduler(Scheduler):
    """A scheduler that lists `jobs` and answers every submission with `answer`."""

    patience = Patience(missing=60.0, heartbeat=30.0, pause=10.0)

    def __init__(self) -> None:
        self.answer = Submission(SubmitStatus.ACCEPTED, job="17")
        self.jobs: dict[str, JobView] = {}
        self.down = False
        self.submitted: list[list[str]] = []
        self.cancelled: list[str] = []
        self.released: list[str] = []
        self.expected: list[JobRef] = []
        self.forgotten: list[str] = []

    def render(self, requests: Sequence[JobRequest]) -> str:
        return ""

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        self.submitted.append([request.token for request in requests])
        return {request.token: self.answer for request in requests}

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        self.expected = list(expected)
        if self.down:
            raise SchedulerUnavailable("no response")
        return dict(self.jobs)

    def cancel(self, views: Sequence[JobView]) -> None:
        if self.down:
            raise SchedulerUnavailable("no response")
        self.cancelled += [view.token for view in views]

    def release(self, views: Sequence[JobView]) -> None:
        self.released += [view.token for view in views]

    def forget(self, tokens: Sequence[str]) -> None:
        self.forgotten += tokens


@dataclass
class FakeExchange:
    """An exchange that returns `reports` and records calls."""

    reports: dict[str, Report] = field(default_factory=dict)
    fence_wins: bool = True
    gone: bool = False
    stuck: str = ""
    order_fails: bool = False
    settling_fails: bool = False
    settled: list[str] = field(default_factory=list)
    shut_out: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)

    def place(self, attempt: Attempt) -> str:
        return "params/%s" % attempt.token

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        if self.order_fails:
            raise OSError(28, "No space left on device")

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        return JobRequest(attempt.token, run.name, "", "", "", 1, 0, 0, 0, 60.0, 5.0)

    def fence(self, attempt: Attempt) -> bool:
        return self.fence_wins

    def shut(self, attempt: Attempt) -> None:
        self.shut_out.append(attempt.token)

    def settle(self, attempt: Attempt) -> None:
        if self.settling_fails:
            raise OSError(28, "No space left on device")
        self.settled.append(attempt.token)

    def report(self, attempt: Attempt) -> Report | None:
        return self.reports.get(attempt.token)

    def publish(self, attempt: Attempt) -> Publication:
        if self.gone:
            raise ResultGone("it has disappeared")
        if attempt.run == self.stuck:
            raise OSError(13, "Permission denied", "results")
        self.published.append(attempt.token)
        return Publication()

    def reject(self, attempt: Attempt, reason: str) -> str:
        return ""

    def retire(self, run: Run) -> None:
        self.retired.append(run.name)


class World:
    def __init__(self, runs: int = 1, parallel: int | None = None) -> None:
        self.now = 1000.0
        self.records = KeptRecords(lambda entry: None)
        self.scheduler, self.exchange = FakeScheduler(), FakeExchange()
        spec = self.records.add_spec(Spec("s", "train", parallel=parallel, limits=Limits(total=1e6)))
        data = [{"position": number, "spec": spec} for number in range(runs)]
        self.records.append(
            [JournalEntry(self.now, "r%d" % d["position"], EntryKind.ADDED, None, d) for d in data]
        )
        self.batches = iter("t%d" % number for number in range(1000))
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        return Controller(
            self.records,
            self.scheduler,
            self.exchange,
            clock=lambda: self.now,
            new_batch=lambda: next(self.batches),
        )

    def run(self, name: str = "r0") -> Run:
        run = self.records.run(name)
        assert run is not None
        return run

    def attempt(self, token: str = "t0-1") -> Attempt:
        attempt = self.records.attempt(token)
        assert attempt is not None
        return attempt

    def kinds(self) -> list[EntryKind]:
        return [entry.kind for entry in self.records.entries]

    def list(self, phase: JobPhase, token: str = "t0-1") -> None:
        over = {"ended": self.now, "elapsed": 50.0, "exit_code": 0} if phase is JobPhase.ENDED else {}
        self.scheduler.jobs[token] = JobView(token, "17", phase, "node1", started=900.0, **over)  # type: ignore[arg-type]

    def end(self, outcome: Outcome, token: str = "t0-1") -> None:
        self.list(JobPhase.ENDED, token)
        spans = ((Phase.COMPUTE, 40.0),)
        self.exchange.reports[token] = Report(
            last_logged=self.now, spans=spans, logged_outcome=outcome, detail="as logged"
        )


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
        (Submission(SubmitStatus.UNKNOWN, reason="timed out"), AttemptState.UNSURE, None),
        (
            Submission(SubmitStatus.REJECTED, reason="full", transient=True),
            AttemptState.ENDED,
            Outcome.REJECTED,
        ),
    ],
)
def test_every_result_of_a_submission_is_recorded(
    world: World, answer: Submission, state: AttemptState, outcome: Outcome | None
) -> None:
    world.scheduler.answer = answer
    world.controller.step()
    assert (world.attempt().state, world.attempt().outcome) == (state, outcome)


def test_a_job_that_the_schedulers_response_does_not_mention_is_unknown(world: World) -> None:
    world.scheduler.submit = lambda requests: {}  # type: ignore[method-assign]
    world.controller.step()
    assert world.attempt().state is AttemptState.UNSURE


def test_a_permanent_rejection_fails_the_run_with_the_schedulers_reason(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.REJECTED, reason="no such partition")
    world.controller.step()
    world.controller.step()
    assert world.run().state is RunState.FAILED and "no such partition" in world.run().reason


def test_a_work_order_that_cannot_be_written_is_retried_later(world: World) -> None:
    world.exchange.order_fails = True
    world.controller.step()
    assert world.attempt().outcome is Outcome.REJECTED and "No space left" in world.attempt().detail
    assert not world.scheduler.submitted
    world.exchange.order_fails = False
    world.controller.step()
    assert not world.scheduler.submitted  # the pause
    world.now += 11.0
    world.controller.step()
    assert world.scheduler.submitted == [["t1-1"]]


def test_a_scheduler_that_does_not_respond_changes_nothing(world: World) -> None:
    world.controller.step()
    before = world.kinds()
    world.scheduler.down = True
    world.now += 1e5
    done = world.controller.step()
    assert (done.jobs, done.scheduler_error, done.entries) == (None, "no response", 0)
    assert world.kinds() == before


def test_a_finished_attempt_is_accepted_published_and_finished_in_one_pass(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    world.end(Outcome.FINISHED)
    world.controller.step()
    assert world.kinds()[-4:] == [EntryKind.STARTED, EntryKind.ENDED, EntryKind.ACCEPTED, EntryKind.FINISHED]
    assert (world.exchange.published, world.exchange.retired) == (["t0-1"], ["r0"])
    assert world.scheduler.forgotten == ["t0-1"] and world.controller.done
    assert "attempt 1" in world.run().reason


def test_a_result_that_disappeared_fails_the_run_with_that_reason(world: World) -> None:
    world.exchange.gone = True
    world.controller.step()
    world.end(Outcome.FINISHED)
    world.controller.step()
    assert world.run().state is RunState.FAILED and "disappeared" in world.run().reason


def test_the_next_attempt_is_started_in_the_pass_that_saw_the_end(world: World) -> None:
    world.controller.step()
    world.end(Outcome.CONTINUE)
    world.controller.step()
    assert world.scheduler.submitted == [["t0-1"], ["t1-1"]]
    assert world.attempt("t1-1").number == 2 and "continue" in world.attempt("t1-1").reason


def test_a_missing_job_is_fenced_before_another_is_started(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.UNKNOWN, reason="timed out")
    fenced: list[int] = []
    world.exchange.fence = lambda attempt: not fenced.append(len(world.scheduler.submitted))  # type: ignore[method-assign,func-returns-value]
    for _ in range(3):
        world.controller.step()
        world.now += 61.0
    assert fenced == [1]
    assert world.attempt().outcome is Outcome.LOST
    world.controller.step()
    assert len(world.scheduler.submitted) == 2


def test_a_job_that_claimed_in_time_is_not_given_up(world: World) -> None:
    world.exchange.fence_wins = False
    world.scheduler.answer = Submission(SubmitStatus.UNKNOWN)
    world.controller.step()
    for _ in range(5):
        world.now += 61.0
        world.exchange.reports["t0-1"] = Report(last_logged=world.now)
        world.controller.step()
    assert world.attempt().state is AttemptState.UNSURE and len(world.scheduler.submitted) == 1


def test_a_late_twin_is_cancelled_booked_and_forgotten(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.UNKNOWN)
    for _ in range(3):
        world.controller.step()
        world.now += 61.0
    world.list(JobPhase.RUNNING)
    world.controller.step()
    assert world.scheduler.cancelled == ["t0-1"] and world.attempt().twin
    world.list(JobPhase.ENDED)
    world.controller.step()
    assert (world.attempt().twin, world.attempt().twin_slot) == (False, 50.0)
    assert world.scheduler.forgotten == ["t0-1"]
    for _ in range(3):
        world.controller.step()
    assert world.kinds().count(EntryKind.TWIN_ENDED) == 1


def test_a_twin_that_could_not_be_cancelled_is_cancelled_in_the_next_pass(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.UNKNOWN)
    for _ in range(3):
        world.controller.step()
        world.now += 61.0
    world.list(JobPhase.RUNNING)

    def fail(views: Sequence[JobView]) -> None:
        raise SchedulerUnavailable("no response")

    cancel = world.scheduler.cancel
    world.scheduler.cancel = fail  # type: ignore[method-assign]
    assert world.controller.step().scheduler_error and not world.attempt().twin
    world.scheduler.cancel = cancel  # type: ignore[method-assign]
    world.controller.step()
    assert world.scheduler.cancelled == ["t0-1"]


def test_a_job_of_an_unknown_attempt_is_cancelled(world: World) -> None:
    world.list(JobPhase.QUEUED, "stranger")
    world.controller.step()
    assert world.scheduler.cancelled == ["stranger"]


def test_a_cancelled_run_ends_when_its_job_has(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    world.records.append([JournalEntry(world.now, "r0", EntryKind.CANCEL_ASKED, None, {"reason": "enough"})])
    world.controller.step()
    assert world.scheduler.cancelled == ["t0-1"] and world.run().state is RunState.ACTIVE
    world.end(Outcome.EVICTED)
    world.controller.step()
    assert (world.run().state, world.run().reason) == (RunState.CANCELLED, "enough")


def test_at_most_parallel_runs_are_active_and_begun_ones_come_first() -> None:
    world = World(runs=4, parallel=2)
    world.controller.step()
    assert world.scheduler.submitted == [["t0-1", "t0-2"]]
    world.end(Outcome.CONTINUE, "t0-2")
    world.controller.step()
    active = [run.name for run in world.records.live().values() if run.state is RunState.ACTIVE]
    assert active == ["r0", "r1"]


def test_after_its_budget_a_pass_starts_nothing_more() -> None:
    world = World(runs=5)
    world.scheduler.batch = 2
    done = world.controller.step(budget=-1.0)
    assert (done.put_off, world.scheduler.submitted) == (["r0", "r1", "r2", "r3", "r4"], [])
    world.controller.step()
    assert [len(batch) for batch in world.scheduler.submitted] == [2, 2, 1]


def test_a_pass_submits_jobs_even_if_all_before_took_longer_than_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(runs=5)
    world.scheduler.batch = 2
    now = [0.0]
    monkeypatch.setattr("outlast.controller.controller.time.monotonic", lambda: now[0])

    def slow(act: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def take_long(*arguments: Any) -> Any:
            now[0] += seconds
            return act(*arguments)

        return take_long

    monkeypatch.setattr(world.scheduler, "poll", slow(world.scheduler.poll, 100.0))
    monkeypatch.setattr(world.scheduler, "submit", slow(world.scheduler.submit, 2.0))
    done = world.controller.step(budget=3.0)
    assert (done.put_off, [len(batch) for batch in world.scheduler.submitted]) == (["r4"], [2, 2])


def test_a_pass_iterates_over_the_starts_as_often_for_many_runs_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(list[Decision]):
        rounds = 0

        def __iter__(self) -> Iterator[Decision]:
            Counted.rounds += 1
            return super().__iter__()

    rounds = []
    for runs in (3, 300):
        world = World(runs)
        admit = world.controller._dispatch.admit
        monkeypatch.setattr(world.controller._dispatch, "admit", lambda *a, admit=admit: Counted(admit(*a)))
        Counted.rounds = 0
        world.controller.step(budget=-1.0)
        rounds.append(Counted.rounds)
    assert rounds[0] == rounds[1]


def test_the_crash_points_are_reached_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    monkeypatch.setattr(crashpoints, "reach", reached.append)
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


class Crashed(BaseException):
    """The controller was killed at a crash point."""


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point.startswith(("start", "accept"))])
def test_a_crash_at_a_point_submits_nothing_twice_and_the_run_still_finishes(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The job of the first attempt exists from its submission on, whether or not the journal has it."""
    armed = [point]

    def die(reached: str) -> None:
        if armed and reached == armed[0]:
            armed.clear()
            raise Crashed

    monkeypatch.setattr(crashpoints, "reach", die)
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
    assert world.run().state is RunState.FINISHED and set(world.exchange.published) == {token}
    assert len(world.scheduler.submitted) == 1
    assert len(world.records.all_attempts()) == (1 if point not in BEFORE else 2)


#: Before the scheduler is called: the attempt is given up and another one is started.
BEFORE = ("start.intended", "start.ordered")


def until(world: World, reached: Callable[[], bool]) -> None:
    for _ in range(20):
        if reached():
            return
        try:
            world.controller.step()
        except Crashed:
            world.controller = world.new_controller()
        world.now += 30.0
    pytest.fail("not reached after 20 passes: %s" % [kind.value for kind in world.kinds()])


def test_the_listener_gets_every_entry(world: World) -> None:
    received: list[JournalEntry] = []
    listening = Controller(world.records, world.scheduler, world.exchange, listener=received.extend)
    listening.step()
    assert received == world.records.entries[1:]


def test_hosts_that_failed_are_avoided_but_not_all_of_them(world: World) -> None:
    world.scheduler.hosts = lambda: ("node1", "node2")  # type: ignore[method-assign]
    world.controller.step()
    world.end(Outcome.STALLED)
    world.controller.step()
    world.now += 11.0
    world.controller.step()
    assert world.attempt("t1-1").avoid == ("node1",)
    view = replace(world.scheduler.jobs["t0-1"], token="t1-1", host="node2")
    world.scheduler.jobs["t1-1"] = view
    world.exchange.reports["t1-1"] = world.exchange.reports["t0-1"]
    world.controller.step()
    world.now += 21.0
    world.controller.step()
    assert world.attempt("t2-1").avoid == ("node2",)


def test_a_result_that_cannot_be_published_does_not_hold_up_the_other_runs() -> None:
    world = World(runs=2)
    world.controller.step()
    world.end(Outcome.FINISHED, "t0-1")
    world.end(Outcome.FINISHED, "t0-2")
    world.exchange.stuck = "r0"
    done = world.controller.step()
    assert (world.run("r0").state, world.run("r1").state) == (RunState.ACCEPTED, RunState.FINISHED)
    assert "Permission denied" in done.notes[0]
    world.exchange.stuck = ""
    world.controller.step()
    assert world.run("r0").state is RunState.FINISHED


def test_nothing_is_submitted_to_a_scheduler_that_does_not_respond(world: World) -> None:
    world.scheduler.down = True
    for _ in range(3):
        world.controller.step()
    assert world.scheduler.submitted == [] and world.run().attempts == 0
    world.scheduler.down = False
    world.controller.step()
    assert world.run().state is RunState.ACTIVE


def test_a_rejected_job_that_runs_nevertheless_is_followed(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.REJECTED, reason="timed out", transient=True)
    world.exchange.fence_wins = False
    world.controller.step()
    assert world.attempt().state is AttemptState.UNSURE
    world.list(JobPhase.RUNNING)
    world.controller.step()
    assert world.attempt().state is AttemptState.RUNNING and len(world.scheduler.submitted) == 1


def test_a_job_that_turns_up_after_its_rejection_is_cancelled(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.REJECTED, reason="no", transient=True)
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    assert world.scheduler.cancelled == ["t0-1"]


def test_a_permanently_rejected_run_is_over_in_the_same_pass(world: World) -> None:
    world.scheduler.answer = Submission(SubmitStatus.REJECTED, reason="no such partition")
    world.controller.step()
    assert world.run().state is RunState.FAILED and "no such partition" in world.run().reason


def test_a_cancelled_job_that_is_gone_is_not_waited_for(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.QUEUED)
    world.records.append([JournalEntry(world.now, "r0", EntryKind.CANCEL_ASKED, None, {"reason": "by me"})])
    world.controller.step()
    world.scheduler.jobs.clear()
    world.now += 2
    world.controller.step()
    world.controller.step()
    assert world.run().state is RunState.CANCELLED


def test_the_scheduler_is_polled_for_the_current_attempts(world: World) -> None:
    world.controller.step()
    assert world.scheduler.expected == []
    world.now += 5
    world.controller.step()
    assert world.scheduler.expected == [JobRef("t0-1", "17", 1000.0)]


def test_no_more_jobs_are_submitted_than_the_cluster_accepts_per_minute_and_in_total() -> None:
    world = World(runs=9)
    world.scheduler.submit_rate, world.scheduler.most_jobs = 2, 5
    world.controller.step()
    world.now += 30
    world.controller.step()
    assert [len(batch) for batch in world.scheduler.submitted] == [2]
    for _ in range(4):
        for token in [token for batch in world.scheduler.submitted for token in batch]:
            world.list(JobPhase.RUNNING, token)
        world.now += 61
        world.controller.step()
    assert [len(batch) for batch in world.scheduler.submitted] == [2, 2, 1]


def test_a_restarted_job_is_followed_to_its_new_host(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    queued = JobView("t0-1", "17", JobPhase.QUEUED, reason="its node failed", restarts=1)
    world.scheduler.jobs["t0-1"] = queued
    world.controller.step()
    assert world.attempt().state is AttemptState.QUEUED and world.attempt().restarts == 1
    world.scheduler.jobs["t0-1"] = replace(queued, phase=JobPhase.RUNNING, host="node2", started=1100.0)
    world.controller.step()
    assert (world.attempt().state, world.attempt().host) == (AttemptState.RUNNING, "node2")
    assert world.kinds()[-2:] == [EntryKind.REQUEUED, EntryKind.STARTED]


def test_a_held_job_is_released_a_few_times_and_then_ended_with_the_reason_of_the_hold(world: World) -> None:
    world.controller.step()
    held = JobView("t0-1", "17", JobPhase.HELD, outcome=Outcome.NETWORK, reason="no route", releasable=True)
    world.scheduler.jobs["t0-1"] = held
    for _ in range(20):
        world.now += 61
        world.controller.step()
    assert world.scheduler.released == ["t0-1"] * 3
    assert world.scheduler.cancelled and set(world.scheduler.cancelled) == {"t0-1"}
    assert world.attempt().waits == "no route"
    world.list(JobPhase.ENDED)
    world.now += 61
    world.controller.step()
    world.now += 61
    world.controller.step()
    assert (world.attempt().outcome, world.attempt().detail) == (Outcome.NETWORK, "no route")


def test_a_run_whose_job_another_user_removed_waits_until_it_is_resumed_and_then_finishes(
    world: World,
) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    world.end(Outcome.EVICTED)
    removed = {"exit_code": None, "outcome": Outcome.CANCELLED, "removed": Removal.OTHER}
    world.scheduler.jobs["t0-1"] = replace(world.scheduler.jobs["t0-1"], **removed)  # type: ignore[arg-type]
    for _ in range(5):
        world.now += 3600.0
        world.controller.step()
    assert world.run().state is RunState.HELD_BACK and world.scheduler.submitted == [["t0-1"]]
    assert "another user" in world.run().reason and "`outlast resume`" in world.run().reason
    world.records.append([JournalEntry(world.now, "r0", EntryKind.RESUMED)])
    world.controller.step()
    assert world.scheduler.submitted == [["t0-1"], ["t1-1"]]
    assert world.attempt("t1-1").reason.endswith("continue, as requested")
    world.end(Outcome.FINISHED, "t1-1")
    world.controller.step()
    world.controller.step()
    assert world.run().state is RunState.FINISHED


def test_the_reason_why_a_job_waits_is_recorded_once_and_when_it_changes(world: World) -> None:
    world.controller.step()
    for reason in ("waits for a GPU", "waits for a GPU", "waits for priority"):
        world.scheduler.jobs["t0-1"] = JobView("t0-1", "17", JobPhase.QUEUED, reason=reason)
        world.now += 61
        world.controller.step()
    assert world.kinds().count(EntryKind.WAITS) == 2
    assert world.attempt().waits == "waits for priority"


def test_an_end_that_cannot_be_settled_waits_for_the_next_pass(world: World) -> None:
    world.controller.step()
    world.end(Outcome.FINISHED)
    world.exchange.settling_fails = True
    done = world.controller.step()
    assert "No space left" in done.notes[0] and EntryKind.ENDED not in world.kinds()
    world.exchange.settling_fails = False
    world.controller.step()
    assert world.exchange.settled == ["t0-1"] and world.run().state is RunState.FINISHED


def test_the_rest_of_a_chain_is_cancelled_once_a_leg_has_finished(world: World) -> None:
    world.controller.step()
    world.exchange.reports["t0-1"] = Report(
        last_logged=world.now, logged_outcome=Outcome.FINISHED, detail="as logged"
    )
    world.scheduler.jobs["t0-1"] = JobView("t0-1", "17", JobPhase.QUEUED, restarts=1)
    world.controller.step()
    assert world.run().state is RunState.FINISHED
    world.records.append([JournalEntry(world.now, "r9", EntryKind.ADDED, None, {"position": 9, "spec": 1})])
    world.controller.step()
    assert world.scheduler.cancelled == ["t0-1"]


def test_a_job_that_is_restarted_again_and_again_without_progress_is_ended(world: World) -> None:
    world.controller.step()
    stuck = Report(last_logged=world.now, spans=((Phase.COMPUTE, 5.0),))
    for restarts in range(12):
        view = JobView("t0-1", "17", JobPhase.RUNNING, "node1", started=900.0, restarts=restarts)
        world.scheduler.jobs["t0-1"] = view
        world.exchange.reports["t0-1"] = replace(stuck, earlier=(stuck,) * restarts)
        world.now += 61
        world.controller.step()
        if restarts < 9:
            assert not world.scheduler.cancelled
    assert world.scheduler.cancelled


def test_a_job_that_logged_its_end_and_is_still_listed_as_running_is_over(world: World) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    spans = ((Phase.COMPUTE, 40.0),)
    report = Report(last_logged=world.now, spans=spans, logged_outcome=Outcome.FINISHED, detail="as logged")
    world.exchange.reports["t0-1"] = report
    world.now += 50
    world.controller.step()
    assert world.run().state is RunState.ACTIVE
    world.now += 50
    world.controller.step()
    assert world.run().state is RunState.FINISHED and world.attempt().account.slot == 40.0


def test_an_attempt_that_ran_and_vanished_is_shut_against_a_restart_of_its_job(world: World) -> None:
    world.controller.step()
    world.exchange.fence_wins = False
    world.exchange.reports["t0-1"] = Report(last_logged=world.now)
    for _ in range(3):
        world.now += 100
        world.controller.step()
    assert world.attempt().outcome is Outcome.LOST and "t0-1" in world.exchange.shut_out


def test_the_logged_end_of_an_earlier_start_does_not_end_the_running_one(world: World) -> None:
    world.controller.step()
    report = Report(
        last_logged=world.now,
        spans=((Phase.COMPUTE, 4.0),),
        logged_outcome=Outcome.CONTINUE,
        detail="as logged",
    )
    world.exchange.reports["t0-1"] = report
    world.now += 500
    running = JobView("t0-1", "18", JobPhase.RUNNING, "node1", started=world.now)
    for _ in range(4):
        world.scheduler.jobs["t0-1"] = running
        world.now += 61
        world.controller.step()
    assert world.attempt().state is AttemptState.RUNNING


def test_the_reason_for_a_cancellation_is_kept_when_the_job_vanishes(world: World) -> None:
    world.controller.step()
    held = JobView("t0-1", "17", JobPhase.HELD, outcome=Outcome.REJECTED, reason="too much input")
    world.scheduler.jobs["t0-1"] = held
    world.controller.step()
    del world.scheduler.jobs["t0-1"]
    for _ in range(3):
        world.now += 61
        world.controller.step()
    assert world.attempt().outcome is Outcome.REJECTED
    assert world.run().state is RunState.FAILED and "too much input" in world.run().reason


@pytest.mark.parametrize("lasting", ["data a.bin missing", ""])
def test_a_lasting_hold_fails_the_run_the_second_time(world: World, lasting: str) -> None:
    for number in range(2):
        world.now += 61
        world.controller.step()
        token = "t%d-1" % number
        why = {"outcome": Outcome.NOT_FOUND, "reason": "404", "lasting": lasting}
        world.scheduler.jobs[token] = JobView(token, "17", JobPhase.HELD, **why)  # type: ignore[arg-type]
        world.controller.step()
        world.list(JobPhase.ENDED, token)
        world.controller.step()
        assert world.attempt(token).outcome is Outcome.NOT_FOUND
    assert (world.run().state is RunState.FAILED) is bool(lasting)
    assert ("the same failure twice: 404" in world.run().reason) is bool(lasting)


@pytest.mark.parametrize(("cause", "lasting"), [("access-point", "x"), ("access-point", ""), (None, "")])
def test_a_hold_that_the_user_has_to_repair_fails_the_run_at_once_and_avoids_no_host(
    world: World, cause: str | None, lasting: str
) -> None:
    world.controller.step()
    world.list(JobPhase.RUNNING)
    world.controller.step()
    why = {"outcome": Outcome.OUT_OF_DISK, "reason": "the disk of /exp is full", "lasting": lasting}
    held = JobView("t0-1", "17", JobPhase.HELD, "node1", **why)  # type: ignore[arg-type]
    world.scheduler.jobs["t0-1"] = replace(held, cause=Cause(cause) if cause else None)
    world.controller.step()
    world.list(JobPhase.ENDED)
    world.controller.step()
    assert world.attempt().outcome is Outcome.OUT_OF_DISK
    assert bool(world.run().sour_hosts) is (cause is None)
    assert (world.run().state is RunState.FAILED) is bool(lasting)
    assert ("the disk of /exp is full" in world.run().reason) is bool(lasting)
    assert ("`outlast retry %s`" % world.run().name in world.run().reason) is bool(lasting)


def test_files_that_cannot_be_read_now_do_not_end_the_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.controller.step()
    world.list(JobPhase.ENDED)

    def vanish(attempt: Attempt) -> Report | None:
        raise FileNotFoundError("renamed")

    monkeypatch.setattr(world.exchange, "report", vanish)
    assert world.controller.step().scheduler_error == ""
