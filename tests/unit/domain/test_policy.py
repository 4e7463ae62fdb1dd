"""The table outcome → action, and when a run fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.domain.model import CAUSES, Cause, Ending, Limits, Outcome, Removal, Run, RunState
from outlast.domain.observation import Patience
from outlast.domain.policy import POLICY, Action, judge

LIMITS = Limits(attempts=10, without_progress=3, total=1000.0)
PATIENCE = Patience(missing=60.0, heartbeat=60.0, pause=10.0, longest_pause=100.0)


def ended(outcome: Outcome, **changes: object) -> Run:
    facts: dict[str, object] = {"number": 1, "token": "a", "outcome": outcome, "detail": "the detail"}
    of_ending = ("transient", "step", "detail", "cause", "removed", "resumed", "unsaved", "go_back", "unsure")
    facts.update(at=100.0, **{key: changes.pop(key) for key in of_ending if key in changes})
    base: dict[str, object] = {"name": "r", "position": 0, "spec": 1, "params": {}, "added": 0.0}
    base.update(state=RunState.WAITING, since=0.0, attempts=1, last=Ending(**facts))  # type: ignore[arg-type]
    return Run(**{**base, **changes})  # type: ignore[arg-type]


def decided(run: Run, now: float = 100.0) -> tuple[Action, str]:
    verdict = judge(run, LIMITS, PATIENCE, now)
    return verdict.action, verdict.reason


def test_every_outcome_has_an_action_and_a_cause() -> None:
    assert set(POLICY) == set(CAUSES) == set(Outcome)


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_leads_to_its_action_and_a_reason_that_names_it(outcome: Outcome) -> None:
    action, reason = decided(ended(outcome))
    assert action is POLICY[outcome]
    assert outcome is Outcome.FINISHED or outcome.value in reason


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if CAUSES[outcome] is Cause.CLUSTER])
def test_no_cluster_error_fails_a_run_at_once(outcome: Outcome) -> None:
    assert decided(ended(outcome))[0] in (Action.CONTINUE, Action.PAUSE)


def test_an_error_to_repair_on_the_access_point_fails_the_run_and_names_the_command() -> None:
    action, reason = decided(ended(Outcome.OUT_OF_DISK, cause=Cause.ACCESS_POINT, transient=False))
    assert action is Action.FAIL
    assert "the detail" in reason and "`outlast retry r`" in reason
    passing = ended(Outcome.OUT_OF_DISK, cause=Cause.ACCESS_POINT)
    assert decided(passing)[0] is Action.PAUSE


def test_a_run_without_attempts_is_started() -> None:
    assert decided(ended(Outcome.LOST, last=None))[0] is Action.CONTINUE


def test_the_same_failure_twice_fails_the_run_and_is_quoted() -> None:
    action, reason = decided(ended(Outcome.CRASHED, failures=2))
    assert action is Action.FAIL
    assert "same failure twice" in reason and "the detail" in reason
    assert decided(ended(Outcome.CRASHED, failures=1))[0] is Action.RETRY_ONCE


def test_attempts_without_progress_fail_the_run_at_the_limit() -> None:
    assert decided(ended(Outcome.OVER_TIME, stuck=2))[0] is Action.CONTINUE
    action, reason = decided(ended(Outcome.OVER_TIME, stuck=3))
    assert action is Action.FAIL and "nothing new" in reason


def test_a_run_that_used_all_of_its_time_and_saved_nothing_fails_unless_it_may_start_over() -> None:
    run = ended(Outcome.OVER_TIME, unsaved=True, stuck=1)
    verdict = judge(run, LIMITS, PATIENCE, 100.0)
    assert verdict.action is Action.FAIL and verdict.alike
    assert "start_over: yes" in verdict.reason and "`outlast retry r`" in verdict.reason
    allowed = judge(run, replace(LIMITS, start_over=True), PATIENCE, 100.0)
    assert allowed.action is Action.CONTINUE
    assert allowed.decided == "starting from the beginning: nothing was saved"


@pytest.mark.parametrize(
    ("facts", "before"),
    [
        ({"failures": 1}, None),  # a crash may be random
        ({"failures": 1, "unsure": True}, 7),
        ({"failures": 2}, 7),
        ({"failures": 5}, 7),
        ({"failures": 1, "stuck": 3}, 7),
    ],
)
def test_a_run_goes_back_to_an_older_snapshot_before_it_fails(
    facts: dict[str, object], before: int | None
) -> None:
    verdict = judge(ended(Outcome.CRASHED, go_back=7, **facts), LIMITS, PATIENCE, 100.0)
    assert (verdict.action, verdict.start_before) == (Action.RETRY_ONCE, before)
    assert ("the snapshot before number 7" in verdict.reason) is (before is not None)


@pytest.mark.parametrize("facts", [{"failures": 2}, {"failures": 1, "stuck": 3}])
def test_a_run_without_an_older_snapshot_fails(facts: dict[str, object]) -> None:
    verdict = judge(ended(Outcome.CRASHED, unsure=True, **facts), LIMITS, PATIENCE, 100.0)
    assert (verdict.action, verdict.start_before) == (Action.FAIL, None)


def test_only_a_failure_of_the_training_leads_back_to_an_older_snapshot() -> None:
    verdict = judge(ended(Outcome.EVICTED, go_back=7, unsure=True), LIMITS, PATIENCE, 100.0)
    assert (verdict.action, verdict.start_before) == (Action.CONTINUE, None)


def test_an_eviction_after_going_back_does_not_fail_the_run() -> None:
    assert decided(ended(Outcome.EVICTED, failures=2))[0] is Action.CONTINUE
    assert decided(ended(Outcome.LOST, failures=2))[0] is Action.PAUSE


@pytest.mark.parametrize("facts", [{"ran": 10}, {"since": -2000.0}])
def test_limits_end_a_run_that_could_go_back(facts: dict[str, object]) -> None:
    assert decided(ended(Outcome.CRASHED, go_back=7, failures=2, **facts))[0] is Action.FAIL


def test_more_attempts_without_progress_are_allowed_if_the_cluster_ended_them() -> None:
    most = 3 * LIMITS.without_progress
    assert decided(ended(Outcome.EVICTED, stuck_any=most - 1))[0] is Action.CONTINUE
    action, reason = decided(ended(Outcome.EVICTED, stuck_any=most))
    assert action is Action.FAIL and "by the cluster" in reason


def test_only_attempts_that_held_a_slot_count_for_the_limit() -> None:
    assert decided(ended(Outcome.REJECTED, attempts=99, ran=9))[0] is Action.PAUSE
    action, reason = decided(ended(Outcome.EVICTED, ran=10))
    assert action is Action.FAIL and "limits.attempts" in reason


def test_the_total_time_ends_a_run_before_and_between_attempts() -> None:
    for run in (ended(Outcome.EVICTED), ended(Outcome.EVICTED, last=None)):
        action, reason = decided(run, now=1001.0)
        assert action is Action.FAIL and "limits.total" in reason


def test_a_result_is_accepted_even_after_every_limit() -> None:
    run = ended(Outcome.FINISHED, ran=99, stuck=9, stuck_any=99, failures=2)
    assert decided(run, now=10**9)[0] is Action.ACCEPT


def test_a_permanent_rejection_fails_the_run_and_a_transient_one_does_not() -> None:
    assert decided(ended(Outcome.REJECTED, transient=True))[0] is Action.PAUSE
    action, reason = decided(ended(Outcome.REJECTED, transient=False))
    assert action is Action.FAIL and "refused" in reason


ONLY_CANCEL = "only `outlast cancel` ends a run"


@pytest.mark.parametrize(
    ("outcome", "removed"), [(Outcome.CANCELLED, Removal.NO), (Outcome.EVICTED, Removal.YES)]
)
def test_a_run_whose_job_was_removed_continues_and_names_the_command_that_ends_it(
    outcome: Outcome, removed: Removal
) -> None:
    action, reason = decided(ended(outcome, removed=removed))
    assert action is Action.CONTINUE
    assert reason.endswith("; it was removed at the scheduler, and the run continues: " + ONLY_CANCEL)


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.EVICTED, Outcome.CRASHED, Outcome.LOST])
def test_a_run_whose_job_another_user_removed_is_held_until_it_is_resumed(outcome: Outcome) -> None:
    action, reason = decided(ended(outcome, removed=Removal.OTHER))
    assert action is Action.HOLD
    assert "another user" in reason and "`outlast resume`" in reason
    assert decided(ended(outcome, removed=Removal.OTHER, resumed=True))[0] is POLICY[outcome]


@pytest.mark.parametrize(
    ("outcome", "removed"), [(Outcome.EVICTED, Removal.MAYBE), (Outcome.LOST, Removal.NO)]
)
def test_a_removal_that_may_be_something_else_is_only_hinted_at(outcome: Outcome, removed: Removal) -> None:
    hint = "(if somebody removed the job: %s)" % ONLY_CANCEL
    assert decided(ended(outcome, removed=removed))[1].endswith(hint)


def test_a_job_that_nobody_removed_simply_continues_whatever_its_detail_contains() -> None:
    verdict = judge(ended(Outcome.EVICTED, detail="cancelled with scancel or qdel"), LIMITS, PATIENCE, 100.0)
    assert (verdict.action, verdict.decided) == (Action.CONTINUE, "continue")


@pytest.mark.parametrize("removed", [Removal.NO, Removal.MAYBE, Removal.YES])
def test_a_removal_by_the_owner_never_ends_a_run_by_itself(removed: Removal) -> None:
    for outcome in (Outcome.EVICTED, Outcome.CANCELLED, Outcome.CONTINUE, Outcome.OVER_TIME):
        assert decided(ended(outcome, removed=removed))[0] is Action.CONTINUE


def test_a_verdict_keeps_what_happened_apart_from_what_follows() -> None:
    verdict = judge(ended(Outcome.CRASHED, failures=1), LIMITS, PATIENCE, 100.0)
    assert verdict.happened == "attempt 1 ended as crashed"
    assert verdict.decided == "retrying once; an identical failure will fail the run"
    assert verdict.reason == "%s; %s" % (verdict.happened, verdict.decided)
    first = judge(ended(Outcome.LOST, last=None, attempts=0), LIMITS, PATIENCE, 100.0)
    assert (first.happened, first.decided, first.reason) == ("first attempt", "", "first attempt")


def test_pauses_double_up_to_the_longest() -> None:
    dues = [judge(ended(Outcome.LOST, troubles=n), LIMITS, PATIENCE, 100.0).due - 100.0 for n in range(1, 8)]
    assert dues == [10.0, 20.0, 40.0, 80.0, 100.0, 100.0, 100.0]
    assert judge(ended(Outcome.LOST, troubles=10**6), LIMITS, PATIENCE, 100.0).due == 200.0


def test_a_clock_that_was_set_back_does_not_lengthen_the_pause() -> None:
    assert judge(ended(Outcome.LOST, troubles=1), LIMITS, PATIENCE, -5000.0).due == -5000.0


def test_data_that_is_unavailable_for_longer_than_the_limit_fails_the_run() -> None:
    run = ended(Outcome.NETWORK, outage_since=40.0)
    for limit, action in ((None, Action.PAUSE), (61.0, Action.PAUSE), (60.0, Action.FAIL)):
        verdict = judge(run, replace(LIMITS, outage=limit), PATIENCE, 100.0)
        assert verdict.action is action
    assert "1 min" in verdict.reason and "the detail" in verdict.reason
    other = judge(ended(Outcome.LOST), replace(LIMITS, outage=1.0), PATIENCE, 100.0)
    assert other.action is Action.PAUSE
