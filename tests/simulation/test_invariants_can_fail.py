"""An engine that is broken on purpose is found out within a few hundred schedules.

Without this, a simulator that checks nothing would pass as well as one that checks everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outlast import controller, engine, fold, ledger, policy
from outlast.engine import Decision, Do
from outlast.model import AttemptState, Kind, Outcome, RunState
from outlast.observation import JobPhase
from outlast.policy import Action, Verdict
from outlast.simulation import simulate
from outlast.simulation.exchange import SimulatedExchange

MOST_SEEDS = 400


def _first_violation(promise: str) -> str:
    """The first violation of `promise`; fails the test if no schedule shows one."""
    others = set()
    for seed in range(MOST_SEEDS):
        for violation in simulate(seed):
            if violation.promise == promise:
                return violation.text
            others.add(str(violation))
    pytest.fail("%d schedules broke no promise %s (but %s)" % (MOST_SEEDS, promise, sorted(others)[:3]))


def _break(monkeypatch: pytest.MonkeyPatch, name: str, wrap: Callable[..., object]) -> None:
    """Replace a function of the engine's by `wrap(original, *arguments)`."""
    original = getattr(engine, name)
    monkeypatch.setattr(engine, name, lambda *arguments: wrap(original, *arguments))


def test_submitting_again_at_once_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(original, run, attempt, *rest):
        if attempt.state is AttemptState.UNSURE:
            return engine._end(run, attempt, None, None, Outcome.LOST, "try again", rest[-1])
        return original(run, attempt, *rest)

    _break(monkeypatch, "_watch_missing", hasty)
    assert "given up" in _first_violation("2")


def test_taking_a_missing_job_for_a_finished_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def credulous(original, run, attempt, report, patience, now):
        return engine._end(run, attempt, None, report, Outcome.FINISHED, "it is gone", now)

    _break(monkeypatch, "_watch_missing", credulous)
    assert "delivered nothing" in _first_violation("2")


def test_giving_up_a_listed_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(original, run, attempt, seen, *rest):
        view = (seen.jobs or {}).get(attempt.token)
        if view is not None and view.phase is JobPhase.RUNNING and attempt.state is AttemptState.RUNNING:
            return engine._end(run, attempt, None, None, Outcome.LOST, "it takes too long", rest[-1])
        return original(run, attempt, seen, *rest)

    _break(monkeypatch, "_watch", impatient)
    assert "listed" in _first_violation("2")


def test_starting_more_than_parallel_allows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "admit", lambda starts, active, parallel: starts)
    assert "under way" in _first_violation("2")


def test_publishing_what_another_attempt_delivered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: SimulatedExchange, attempt):
        self.published[attempt.run] = next(iter(self.delivered), attempt.token)

    monkeypatch.setattr(SimulatedExchange, "publish", careless)
    assert "published" in _first_violation("2")


def test_never_counting_a_traceback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(original, run, attempt, view, report, outcome, detail, now):
        decision = original(run, attempt, view, report, outcome, detail, now)
        return replace(decision, data={**decision.data, "signature": None})

    _break(monkeypatch, "_end", forgetful)
    assert "the same way" in _first_violation("6")


def test_blaming_the_training_for_an_eviction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unjust(original, run, attempt, view, report, outcome, detail, now):
        if outcome is Outcome.EVICTED:
            outcome = Outcome.CRASHED
        decision = original(run, attempt, view, report, outcome, detail, now)
        return replace(decision, data={**decision.data, "signature": "the same"})

    _break(monkeypatch, "_end", unjust)
    assert "only the cluster" in _first_violation("6")


def test_counting_the_trouble_of_a_host_as_a_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    training = dict.fromkeys((Outcome.OUT_OF_DISK, Outcome.CORRUPT_INPUT), fold.Cause.TRAINING)
    monkeypatch.setattr(fold, "CAUSES", {**fold.CAUSES, **training})
    assert _first_violation("6")


def test_waiting_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_watch_missing", lambda *arguments: None)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert "not over" in _first_violation("1")


def test_failing_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(run, limits, patience, now):
        verdict = policy.judge(run, limits, patience, now)
        return Verdict(verdict.action, "" if verdict.action is Action.FAIL else verdict.reason, verdict.due)

    monkeypatch.setattr(engine, "judge", silent)
    assert "without a reason" in _first_violation("1")


def test_an_entry_that_does_not_fit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def confused(original, run, attempt, *rest):
        if run.state is RunState.WAITING and run.attempts == 2:
            return Decision(Do.RECORD, run.name, "", None, Kind.FINISHED, {})
        return original(run, attempt, *rest)

    _break(monkeypatch, "decide", confused)
    assert "ImpossibleStep" in _first_violation("1")


def test_booking_the_time_of_a_twin_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(original, attempt, view, now):
        return original(replace(attempt, twin_slot=0.0, account={}), view, now)

    _break(monkeypatch, "decide_twin", generous)
    assert "held a slot" in _first_violation("5")


def test_booking_lost_work_as_useful_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_kept", lambda attempt, horizon: float("inf"))
    assert "useful" in _first_violation("5")


def test_booking_kept_work_as_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_kept", lambda attempt, horizon: 0.0)
    assert "useful" in _first_violation("5")


def test_overlooking_a_late_twin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.Controller, "_deal_with_strays", lambda *arguments: None)
    assert "held a slot" in _first_violation("5")
