"""The simulator detects an engine that is broken on purpose, within a few hundred schedules.

Without these tests a simulator that checks nothing would pass as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outlast.controller import controller
from outlast.domain import admission, attempt_end, engine, fold, ledger, outcomes, policy
from outlast.domain.accounts import AttemptAccount
from outlast.domain.decision import Decision, DecisionKind
from outlast.domain.model import AttemptState, EntryKind, Outcome, RunState
from outlast.domain.observation import JobPhase
from outlast.domain.outcomes import Conclusion
from outlast.domain.policy import Action, Verdict
from outlast.exchange.base import Publication
from outlast.simulation import Scenario, carry_out, draw_scenario
from outlast.simulation.scenario import Weather
from outlast.simulation.simulated_exchange import SimulatedExchange

MOST_SEEDS = 400


Change = Callable[[Scenario], Scenario]


def _as_drawn(scenario: Scenario) -> Scenario:
    return scenario


def _restless(after: float = 0.3, **weather: float) -> Change:
    """Return a change to a scenario whose only fault is that jobs are evicted and requeued.

    `after` is the mean part of their time limit until then; `weather` adds faults.
    """

    def change(scenario: Scenario) -> Scenario:
        evicted = Weather(evicted_after=after * scenario.spec.resources.time, requeued=1.0)
        return replace(scenario, weather=replace(evicted, **weather), bad_hosts={})

    return change


def _stranded(scenario: Scenario) -> Scenario:
    """Evicted jobs are never started again."""
    limits = replace(scenario.spec.limits, total=10 * scenario.spec.resources.time)
    return _restless(never_started=1.0)(replace(scenario, spec=replace(scenario.spec, limits=limits)))


def _late(scenario: Scenario) -> Scenario:
    """Logs are late, but not later than the controller waits for them."""
    files = 0.4 * scenario.spec.resources.time
    scenario = replace(scenario, patience=replace(scenario.patience, files=files))
    return _restless(evicted_with_notice=1.0, log_late=1.0, log_late_seconds=files)(scenario)


def _changing(scenario: Scenario) -> Scenario:
    return replace(scenario, weather=Weather(changing_reasons=1.0), queue=30 * scenario.spec.resources.time)


def _unlimited(scenario: Scenario) -> Scenario:
    return replace(scenario, most_jobs=None, submit_rate=None)


HIDDEN = _restless(
    vanishes=0.5, vanished_lives=1.0, evicted_with_notice=1.0, log_late=1.0, log_late_seconds=300.0
)
REVIVED = _restless(revived=0.5)
CUT_OFF = _restless(cut_off=1.0, blind=1.0)
WITHOUT_PROGRESS = _restless(after=0.05)


def _stuck(scenario: Scenario) -> Scenario:
    """The host of every cancelled job dies, and the job is listed as running."""
    return replace(scenario, weather=Weather(user_cancels=1.0, cancel_stuck=1.0))


def _held_for_good(scenario: Scenario) -> Scenario:
    return replace(scenario, weather=Weather(held_for_good=1.0))


def _first_violation(promise: str, change: Change = _as_drawn, containing: str = "") -> str:
    """Return the first violation of `promise` that contains a text; fail the test if there is none."""
    others = set()
    for seed in range(MOST_SEEDS):
        for violation in carry_out(change(draw_scenario(seed))).violations:
            if violation.promise == promise and containing in violation.text:
                return violation.text
            others.add(str(violation))
    pytest.fail("%d schedules broke no promise %s (but %s)" % (MOST_SEEDS, promise, sorted(others)[:3]))


@pytest.mark.parametrize(
    "change",
    (HIDDEN, _late, REVIVED, CUT_OFF, WITHOUT_PROGRESS, _stranded, _changing, _held_for_good, _stuck),
)
def test_the_changed_scenarios_alone_break_no_promise(change: Change) -> None:
    for seed in range(60):
        assert carry_out(change(draw_scenario(seed))).violations == []


def _break(monkeypatch: pytest.MonkeyPatch, name: str, wrap: Callable[..., object]) -> None:
    """Replace a function of the domain by `wrap(original, *arguments)`, wherever it is called."""
    modules = [module for module in (engine, attempt_end, outcomes, admission) if hasattr(module, name)]
    original = getattr(modules[0], name)
    for module in modules:
        monkeypatch.setattr(module, name, lambda *arguments: wrap(original, *arguments))


def test_submitting_again_at_once_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(original, run, attempt, *rest):
        if attempt.state is AttemptState.UNSURE:
            return attempt_end.end_attempt(
                run, attempt, None, None, Conclusion(Outcome.LOST, "try again"), rest[-1]
            )
        return original(run, attempt, *rest)

    _break(monkeypatch, "_watch_missing", hasty)
    assert "given up" in _first_violation("2")


def test_taking_a_missing_job_for_a_finished_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def credulous(original, run, attempt, report, patience, now):
        return attempt_end.end_attempt(
            run, attempt, None, report, Conclusion(Outcome.FINISHED, "it is gone"), now
        )

    _break(monkeypatch, "_watch_missing", credulous)
    assert "delivered nothing" in _first_violation("2")


def test_giving_up_a_listed_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(original, run, attempt, seen, *rest):
        view = (seen.jobs or {}).get(attempt.token)
        if view is not None and view.phase is JobPhase.RUNNING and attempt.state is AttemptState.RUNNING:
            return attempt_end.end_attempt(
                run, attempt, None, None, Conclusion(Outcome.LOST, "it takes too long"), rest[-1]
            )
        return original(run, attempt, seen, *rest)

    _break(monkeypatch, "_watch", impatient)
    assert "listed" in _first_violation("2")


def test_starting_more_than_parallel_allows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "admit", lambda starts, *usage: starts)
    assert "under way" in _first_violation("2", _unlimited)


def test_publishing_what_another_attempt_delivered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: SimulatedExchange, attempt):
        (token, _), steps = next(iter(self.delivered.items()), ((attempt.token, 1), 0))
        self.published[attempt.run] = token, steps
        return Publication()

    monkeypatch.setattr(SimulatedExchange, "publish", careless)
    assert "published" in _first_violation("2")


def test_never_counting_a_traceback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(original, run, attempt, view, report, conclusion, now):
        decision = original(run, attempt, view, report, conclusion, now)
        return replace(decision, data={**decision.data, "signature": None})

    _break(monkeypatch, "end_attempt", forgetful)
    assert "the same way" in _first_violation("6")


def test_blaming_the_training_for_an_eviction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unjust(original, run, attempt, view, report, conclusion, now):
        if conclusion.outcome is Outcome.EVICTED:
            conclusion = conclusion._replace(outcome=Outcome.CRASHED)
        decision = original(run, attempt, view, report, conclusion, now)
        return replace(decision, data={**decision.data, "signature": "the same"})

    _break(monkeypatch, "end_attempt", unjust)
    assert _first_violation("6", containing="only the cluster")


def test_counting_a_host_failure_as_a_failure_of_the_training_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = dict.fromkeys((Outcome.OUT_OF_DISK, Outcome.CORRUPT_INPUT), fold.Cause.TRAINING)
    monkeypatch.setattr(fold, "CAUSES", {**fold.CAUSES, **training})
    assert _first_violation("6")


def test_waiting_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_watch_missing", lambda *arguments: None)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert "not over" in _first_violation("1")


def test_waiting_for_ever_for_a_cancelled_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_give_up", lambda *arguments: None)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert "not over" in _first_violation("1", _stuck)


def test_failing_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(run, limits, patience, now):
        verdict = policy.judge(run, limits, patience, now)
        reason = "" if verdict.action is Action.FAIL else verdict.reason
        return Verdict(verdict.action, reason, due=verdict.due)

    monkeypatch.setattr(engine, "judge", silent)
    assert "without a reason" in _first_violation("1")


def test_an_entry_that_does_not_fit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def confused(original, run, attempt, *rest):
        if run.state is RunState.WAITING and run.attempts == 2:
            return Decision(DecisionKind.RECORD, run.name, "", None, EntryKind.FINISHED, {})
        return original(run, attempt, *rest)

    _break(monkeypatch, "decide", confused)
    assert "ImpossibleStep" in _first_violation("1")


def test_booking_the_time_of_a_twin_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(original, attempt, view, now):
        return original(replace(attempt, twin_slot=0.0, account=AttemptAccount()), view, now)

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


# Restarts of jobs


def test_leaving_an_attempt_open_that_is_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedExchange, "shut", lambda self, attempt: None)
    assert "which was given up" in _first_violation("2")


def test_taking_a_restart_for_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(original, run, attempt, seen, *rest):
        view = (seen.jobs or {}).get(attempt.token)
        if view is not None and view.restarts > attempt.restarts:
            report = seen.reports.get(attempt.token)
            conclusion = Conclusion(Outcome.EVICTED, "started again")
            return attempt_end.end_attempt(run, attempt, view, report, conclusion, rest[-1])
        return original(run, attempt, seen, *rest)

    _break(monkeypatch, "_watch", hasty)
    assert _first_violation("2", _restless())


def test_ending_an_evicted_attempt_that_one_listing_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(original, run, attempt, report, patience, now):
        if report is not None and report.logged_outcome is Outcome.EVICTED:
            return attempt_end.end_by_report(run, attempt, None, report, now)
        return original(run, attempt, report, patience, now)

    _break(monkeypatch, "_watch_missing", hasty)
    assert _first_violation("2", HIDDEN, "while it was listed")


def test_taking_the_report_of_an_earlier_start_for_the_last_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, "is_final", lambda original, report, restarts: report.logged_outcome is not None)
    assert _first_violation("2", _late, "and ended as")


def test_letting_the_job_of_an_attempt_that_is_over_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.Controller, "_deal_with_strays", lambda *arguments: None)
    assert "its job was not cancelled" in _first_violation("2", REVIVED)


def test_not_booking_a_start_after_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(original, attempt, view, now):
        return original(attempt, view, now) if attempt.outcome is Outcome.LOST else None

    _break(monkeypatch, "decide_twin", forgetful)
    assert "held a slot" in _first_violation("5", REVIVED)


def test_booking_the_last_start_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ledger._legs
    monkeypatch.setattr(ledger, "_legs", lambda run, attempt: original(run, attempt)[-1:])
    assert "booked" in _first_violation("5", _restless())


def test_dropping_what_earlier_starts_did_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def brief(original, *arguments):
        return replace(original(*arguments), earlier=())

    _break(monkeypatch, "_account", brief)
    assert "useful" in _first_violation("5", _restless())


def test_booking_a_lost_start_at_the_cost_of_the_next_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_order(run, attempt):
        legs = original(run, attempt)
        left = attempt.account.slot_seconds
        booked = []
        for leg in legs:
            slot = min(leg.logged, left) if leg is not legs[-1] else left
            booked.append(replace(leg, slot=slot))
            left -= slot
        return booked

    original = ledger._legs
    monkeypatch.setattr(ledger, "_legs", in_order)
    assert "useful" in _first_violation("5", CUT_OFF)


def test_starting_a_job_without_progress_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, "_idle_legs", lambda original, legs: 0)
    assert "times without progress" in _first_violation("2", WITHOUT_PROGRESS)


def test_waiting_without_a_limit_after_a_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(original, run, attempt, view, *rest):
        return original(run, attempt, replace(view, phase=JobPhase.RUNNING), *rest)

    _break(monkeypatch, "_watch_alive", blind)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert "not over" in _first_violation("1", _stranded)


def test_not_recording_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(original, run, attempt, seen, *rest):
        decision = original(run, attempt, seen, *rest)
        return None if decision is not None and decision.kind is EntryKind.REQUEUED else decision

    _break(monkeypatch, "_watch", deaf)
    assert _first_violation("2", _restless(), containing="the restart of")


# Held and queued jobs


def test_retrying_a_run_whose_jobs_are_held_for_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hopeful(original, run, attempt, view, report, conclusion, now):
        decision = original(run, attempt, view, report, conclusion, now)
        return replace(decision, data={**decision.data, "transient": True})

    _break(monkeypatch, "end_attempt", hopeful)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert _first_violation("1", _held_for_good)


def test_doing_nothing_about_a_held_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_decide_hold", lambda *arguments: None)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert "nothing was done" in _first_violation("2")


def test_releasing_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_RELEASES", 10**6)
    monkeypatch.setattr("outlast.simulation.schedule.MOST_PASSES", 300)
    assert "released" in _first_violation("2")


def test_not_recording_why_a_job_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_is_news", lambda *arguments: False)
    assert "the reason why" in _first_violation("2")


def test_recording_every_change_of_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WAITS_AGAIN", 0.0)
    assert "was recorded" in _first_violation("1", _changing)


# Limits of the cluster, and the order of steps


def test_recording_an_end_before_it_is_settled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.Controller, "_settle_ended", lambda self, entries, done: list(entries))
    assert "before it was settled" in _first_violation("2")


def test_sending_more_jobs_a_minute_than_allowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(original, starts, runs, jobs, lately, each):
        return original(starts, runs, jobs, (0, None), each)

    _break(monkeypatch, "admit", hasty)
    assert "within a minute" in _first_violation("2")


def test_having_more_jobs_than_the_cluster_allows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(original, starts, runs, jobs, lately, each):
        return original(starts, runs, (0, None), lately, each)

    _break(monkeypatch, "admit", greedy)
    assert "are allowed" in _first_violation("2")
