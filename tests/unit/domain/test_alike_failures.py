"""When runs that have not begun are held back."""

from __future__ import annotations

from typing import Any

from outlast.domain.alike_failures import ENOUGH, FailedRun, HoldBack, add_retried, why_hold_back
from outlast.domain.engine import decide
from outlast.domain.model import Attempt, AttemptState, Ending, EntryKind, Limits, Outcome, Run, RunState
from outlast.domain.observation import JobPhase, JobView, Observations, Patience

PATIENCE = Patience(missing=60.0, heartbeat=60.0, pause=10.0)
FAILED = {"bug": {name: FailedRun(name, 50.0, "no such layer") for name in ("a", "b", "c")}}


def a_run(name: str = "r", **changes: Any) -> Run:
    return Run(**{**{"name": name, "position": 0, "spec": 1, "params": {}, "state": RunState.WAITING,
                     "added": 0.0, "since": 10.0}, **changes})  # fmt: skip


def test_enough_failures_since_a_run_was_submitted_hold_it_back_with_the_commands() -> None:
    found = why_hold_back(a_run(), FAILED, {})
    assert found is not None and found.final
    assert "3 runs failed alike (a, b, c): no such layer" in found.reason
    assert "`outlast retry --failed`" in found.reason and "`outlast resume`" in found.reason
    fewer = {
        "bug": dict(list(FAILED["bug"].items())[: ENOUGH - 1]),
        "other": {"d": FailedRun("d", 50.0, "x")},
    }
    assert why_hold_back(a_run(), fewer, {}) is None


def test_a_run_that_has_begun_or_was_resumed_since_is_not_held_back() -> None:
    assert why_hold_back(a_run(ran=1), FAILED, {}) is None
    assert why_hold_back(a_run(since=50.0), FAILED, {}) is None
    assert why_hold_back(a_run(cancel_asked="by the user"), FAILED, {}) is None


def crashed(name: str, **changes: Any) -> Run:
    last = Ending(1, name, Outcome.CRASHED, "no such layer", 50.0, computed=True)
    return a_run(name, last=last, failure="bug", failures=1, ran=1, **{"observed": 5.0, **changes})


def test_runs_wait_while_others_that_failed_alike_once_are_retried_and_have_not_passed_the_failure() -> None:
    runs = [crashed(name) for name in ("a", "b", "c")]

    def held(started: float | None) -> HoldBack | None:
        attempt = Attempt("a", 2, "x", AttemptState.RUNNING, 60.0, started=started)
        return why_hold_back(a_run(), {}, add_retried({}, runs, lambda run: attempt, now=200.0))

    for started in (None, 150.0):
        found = held(started)
        assert found is not None and not found.final and "retried before others begin" in found.reason
    assert held(100.0) is None


def test_the_note_about_runs_that_are_retried_is_the_same_if_another_one_joins_them() -> None:
    notes = set()
    for names in ("abc", "abcd", "abcde"):
        retried = add_retried({}, [crashed(name) for name in names], lambda run: None, now=200.0)
        found = why_hold_back(a_run(), {}, retried)
        assert found is not None
        notes.add(found.reason)
    assert notes == {"several runs failed alike: no such layer; they are retried before others begin"}


def next_of(run: Run, attempt: Attempt | None, view: JobView | None, final: bool) -> Any:
    seen = Observations({view.token: view} if view else {})
    return decide(run, attempt, seen, Limits(), PATIENCE, 200.0, HoldBack("why", final))


def test_a_waiting_run_is_recorded_as_held_back_only_if_the_failures_are_final() -> None:
    decision = next_of(a_run(), None, None, final=True)
    assert decision.kind is EntryKind.HELD_BACK and decision.reason == "why"
    assert next_of(a_run(), None, None, final=False) is None
    assert next_of(a_run(state=RunState.HELD_BACK), None, None, final=True) is None
    cancelled = next_of(a_run(state=RunState.HELD_BACK, cancel_asked="by the user"), None, None, final=True)
    assert cancelled.kind is EntryKind.CANCELLED


def test_a_queued_job_is_withdrawn_and_a_running_one_is_not() -> None:
    run = a_run(state=RunState.ACTIVE, current="x", attempts=1)
    queued = Attempt("r", 1, "x", AttemptState.QUEUED, 60.0)
    decision = next_of(run, queued, JobView("x", "7", JobPhase.QUEUED), final=False)
    assert decision.kind is EntryKind.CANCEL_SENT and decision.data["outcome"] == "cancelled"
    running = Attempt("r", 1, "x", AttemptState.RUNNING, 60.0, started=70.0)
    view = JobView("x", "7", JobPhase.RUNNING, started=70.0)
    assert next_of(run, running, view, final=True) is None
