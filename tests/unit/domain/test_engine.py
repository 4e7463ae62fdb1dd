"""Decisions from state and observations, one situation at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.domain.accounts import AttemptAccount
from outlast.domain.decision import Decision, DecisionKind
from outlast.domain.engine import AVOID_HOST_FOR, CANCEL_AGAIN, CANCELS, after_fence, decide, decide_twin
from outlast.domain.model import (
    Attempt,
    AttemptState,
    Ending,
    EntryKind,
    Limits,
    Outcome,
    Phase,
    Removal,
    Run,
    RunState,
)
from outlast.domain.observation import JobPhase, JobView, Observations, Patience, Report, Save
from outlast.node.protocol import EXIT_BAD_ORDER, EXIT_NOT_CLAIMED, EXIT_NOT_PREPARED, SETUP_FAILED

NOW = 1000.0
LIMITS = Limits(total=500.0)
PATIENCE = Patience(missing=60.0, heartbeat=30.0, pause=10.0)
RUN = Run("r", 0, 1, {}, RunState.ACTIVE, added=900.0, since=900.0, attempts=1, current="a")
ATTEMPT = Attempt("r", 1, "a", AttemptState.RUNNING, intended=900.0, job="17", started=910.0)
ENDED = JobView("a", "17", JobPhase.ENDED, "node1", started=910.0, ended=990.0, elapsed=80.0, exit_code=0)
RUNNING = JobView("a", "17", JobPhase.RUNNING, "node1", started=910.0)
REPORT = Report(
    claimed=912.0,
    host="node1",
    last_logged=990.0,
    spans=((Phase.CLAIM, 1.0), (Phase.COMPUTE, 70.0)),
    saves=(Save(30.0, 3), Save(60.0, 6)),
    loaded=True,
)


def next_for(
    view: JobView | None = None,
    report: Report | None = None,
    attempt: Attempt = ATTEMPT,
    run: Run = RUN,
    now: float = NOW,
) -> Decision | None:
    seen = Observations({view.token: view} if view else {}, {"a": report} if report else {})
    return decide(run, attempt, seen, LIMITS, PATIENCE, now)


def ending(decision: Decision | None) -> dict[str, Any]:
    assert decision is not None and decision.kind is EntryKind.ENDED
    return dict(decision.data)


def test_a_run_that_is_over_needs_no_decision() -> None:
    for state in (RunState.FINISHED, RunState.FAILED, RunState.CANCELLED):
        assert decide(replace(RUN, state=state), None, Observations({}), LIMITS, PATIENCE, NOW) is None


def test_an_accepted_result_is_published_in_any_case() -> None:
    run = replace(RUN, state=RunState.ACCEPTED, accepted="a", cancel_asked="enough", current=None)
    decision = decide(run, None, Observations(None), LIMITS, PATIENCE, 10**9)
    assert decision is not None and (decision.do, decision.token) == (DecisionKind.PUBLISH, "a")


def between_attempts(
    outcome: Outcome, removed: Removal = Removal.NO, resumed: bool = False, **changes: Any
) -> Decision | None:
    last = Ending(1, "a", outcome, "detail", at=NOW, removed=removed, resumed=resumed)
    run = replace(RUN, state=RunState.WAITING, current=None, last=last, **changes)
    return decide(run, None, Observations(None), LIMITS, PATIENCE, NOW)


def test_a_finished_attempt_is_accepted_even_if_a_cancellation_was_requested() -> None:
    decision = between_attempts(Outcome.FINISHED, cancel_asked="enough")
    assert decision is not None and (decision.kind, decision.token) == (EntryKind.ACCEPTED, "a")


def test_between_attempts_a_cancellation_comes_before_failure_and_before_the_next_start() -> None:
    for changes in ({}, {"failures": 2}):
        decision = between_attempts(Outcome.CRASHED, cancel_asked="enough", **changes)
        assert decision is not None and (decision.kind, decision.reason) == (EntryKind.CANCELLED, "enough")


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.EVICTED, Outcome.CONTINUE])
def test_a_run_whose_job_another_user_removed_is_held_back_and_not_started(outcome: Outcome) -> None:
    decision = between_attempts(outcome, Removal.OTHER)
    assert decision is not None and decision.kind is EntryKind.HELD_BACK
    assert "removed the job of attempt 1 (detail)" in decision.reason
    resumed = between_attempts(outcome, Removal.OTHER, resumed=True)
    assert resumed is not None and resumed.do is DecisionKind.START


def test_a_cancellation_ends_a_run_whose_job_another_user_removed() -> None:
    decision = between_attempts(Outcome.CANCELLED, Removal.OTHER, cancel_asked="enough")
    assert decision is not None and decision.kind is EntryKind.CANCELLED


def test_results_are_accepted_whoever_removed_the_job() -> None:
    decision = between_attempts(Outcome.FINISHED, Removal.OTHER)
    assert decision is not None and decision.kind is EntryKind.ACCEPTED


@pytest.mark.parametrize("report", [replace(REPORT, logged_outcome=Outcome.EVICTED), REPORT, None])
def test_the_end_of_an_attempt_records_that_another_user_removed_its_job(report: Report | None) -> None:
    removed = replace(ENDED, exit_code=None, outcome=Outcome.CANCELLED, removed=Removal.OTHER)
    assert ending(next_for(removed, report))["removed"] == "other"


def test_after_a_cancellation_of_our_own_it_does_not_matter_who_else_removed_the_job() -> None:
    removed = replace(ENDED, exit_code=None, outcome=Outcome.CANCELLED, removed=Removal.OTHER)
    sent = replace(ATTEMPT, cancel_sent=NOW - 10, cancel_since=NOW - 10)
    condemned = replace(sent, condemned=(Outcome.EVICTED, "no progress"))
    for run, attempt in ((replace(RUN, cancel_asked="enough"), ATTEMPT), (RUN, sent), (RUN, condemned)):
        assert ending(next_for(removed, None, attempt, run))["removed"] == "yes"


def test_the_next_attempt_avoids_hosts_that_failed_and_waits_for_its_pause() -> None:
    assert between_attempts(Outcome.LOST, troubles=1) is None
    decision = between_attempts(Outcome.EVICTED, sour_hosts=(("node1", NOW), ("node2", NOW - AVOID_HOST_FOR)))
    assert decision is not None and decision.do is DecisionKind.START and decision.data["avoid"] == ["node1"]
    decision = between_attempts(Outcome.CRASHED, failures=2)
    assert decision is not None and decision.kind is EntryKind.FAILED


@pytest.mark.parametrize("name", ['a"}) || true', "a'b", "n[1-4]", "a b", "x" * 300])
def test_a_host_whose_name_is_more_than_a_name_is_not_avoided(name: str) -> None:
    decision = between_attempts(Outcome.EVICTED, sour_hosts=((name, NOW), ("node1", NOW)))
    assert decision is not None and decision.data["avoid"] == ["node1"]


def test_an_intent_without_a_response_becomes_unsure() -> None:
    decision = next_for(attempt=replace(ATTEMPT, state=AttemptState.INTENDED, job=""))
    assert decision is not None and decision.kind is EntryKind.UNSURE


def test_a_failed_poll_leads_to_no_decision() -> None:
    for state in (AttemptState.UNSURE, AttemptState.QUEUED, AttemptState.RUNNING):
        attempt = replace(ATTEMPT, state=state, missed=0.0)
        assert decide(RUN, attempt, Observations(None), LIMITS, PATIENCE, NOW) is None


def test_a_job_is_found_by_its_token() -> None:
    unsure = replace(ATTEMPT, state=AttemptState.UNSURE, job="", missed=950.0)
    queued = replace(RUNNING, phase=JobPhase.QUEUED)
    decision = next_for(queued, attempt=unsure)
    assert decision is not None and decision.kind is EntryKind.QUEUED and decision.data["job"] == "17"
    decision = next_for(RUNNING, attempt=unsure)
    assert decision is not None and decision.kind is EntryKind.STARTED and decision.data["host"] == "node1"


def test_a_job_that_is_listed_again_is_no_longer_missing() -> None:
    decision = next_for(RUNNING, attempt=replace(ATTEMPT, missed=950.0))
    assert decision is not None and decision.kind is EntryKind.SEEN
    assert next_for(RUNNING) is None


def test_a_missing_job_is_fenced_only_after_patience_and_silence() -> None:
    missed = next_for()
    assert missed is not None and missed.kind is EntryKind.MISSED
    assert next_for(attempt=replace(ATTEMPT, missed=NOW - 59.0)) is None
    silent = replace(ATTEMPT, missed=NOW - 61.0)
    assert next_for(attempt=silent, report=replace(REPORT, last_logged=NOW - 29.0)) is None
    for report in (None, replace(REPORT, last_logged=NOW - 31.0)):
        decision = next_for(attempt=silent, report=report)
        assert decision is not None and decision.do is DecisionKind.FENCE


def test_a_clock_that_was_set_back_restarts_the_wait() -> None:
    decision = next_for(attempt=replace(ATTEMPT, missed=NOW + 3600.0))
    assert decision is not None and decision.kind is EntryKind.MISSED


def test_a_missing_job_that_logged_its_end_has_ended() -> None:
    data = ending(next_for(report=replace(REPORT, logged_outcome=Outcome.FINISHED, detail="done")))
    assert data["outcome"] == "finished" and data["account"]["slot"] == pytest.approx(71.0)


def test_a_fence_that_won_means_the_job_never_runs() -> None:
    for job, text in (("17", "before it began"), ("", "never reached the queue")):
        attempt = replace(ATTEMPT, state=AttemptState.QUEUED if job else AttemptState.UNSURE, job=job)
        data = ending(after_fence(RUN, attempt, None, True, PATIENCE, NOW))
        assert data["outcome"] == "lost" and text in data["detail"] and not data["account"]


def test_a_fence_that_lost_waits_for_the_node_until_it_is_silent() -> None:
    assert after_fence(RUN, ATTEMPT, None, False, PATIENCE, NOW) is None
    assert after_fence(RUN, ATTEMPT, replace(REPORT, last_logged=NOW - 10.0), False, PATIENCE, NOW) is None
    lost = ending(after_fence(RUN, ATTEMPT, replace(REPORT, last_logged=NOW - 40.0), False, PATIENCE, NOW))
    assert lost["outcome"] == "lost" and lost["step"] == 6
    final = replace(REPORT, logged_outcome=Outcome.CONTINUE)
    assert ending(after_fence(RUN, ATTEMPT, final, False, PATIENCE, NOW))["outcome"] == "continue"


def test_a_claim_without_any_log_is_not_waited_for_without_end() -> None:
    unsure = replace(ATTEMPT, state=AttemptState.UNSURE, job="", started=None)
    for missed, given_up in ((None, False), (NOW - 80.0, False), (NOW - 100.0, True)):
        decision = after_fence(RUN, replace(unsure, missed=missed), None, False, PATIENCE, NOW)
        assert (decision is not None) is given_up
    assert ending(decision)["outcome"] == "lost"


def test_the_logged_outcome_counts_and_the_slot_time_is_the_schedulers() -> None:
    report = replace(REPORT, logged_outcome=Outcome.CRASHED, detail="boom", signature="x", tail=("line",))
    data = ending(next_for(ENDED, report))
    assert (data["outcome"], data["detail"], data["signature"]) == ("crashed", "boom", "x")
    assert (data["step"], data["computed"], data["host"]) == (6, True, "node1")
    account = data["account"]
    assert (account["slot"], account["tail"]) == (80.0, ["line"])
    assert account["saves"] == [[30.0, 3], [60.0, 6]]


def test_a_job_that_saved_because_it_was_removed_names_the_removal() -> None:
    removed = replace(ENDED, outcome=Outcome.CANCELLED, reason="cancelled with scancel")
    data = ending(next_for(removed, replace(REPORT, logged_outcome=Outcome.EVICTED, detail="saved and left")))
    assert (data["outcome"], data["detail"]) == ("evicted", "cancelled with scancel: saved and left")


def test_an_exit_without_a_logged_outcome_is_waited_for_and_then_lost() -> None:
    decision = next_for(ENDED, REPORT)
    assert decision is not None and decision.kind is EntryKind.MISSED
    assert next_for(ENDED, REPORT, replace(ATTEMPT, missed=NOW - 10.0)) is None
    assert ending(next_for(ENDED, REPORT, replace(ATTEMPT, missed=NOW - 61.0)))["outcome"] == "lost"


def test_a_finished_job_ends_at_once_even_if_the_log_of_an_earlier_start_is_missing() -> None:
    again = replace(ENDED, restarts=1)
    finished = replace(REPORT, logged_outcome=Outcome.FINISHED)
    assert ending(next_for(again, finished))["outcome"] == "finished"
    for view, report in (
        (again, replace(REPORT, logged_outcome=Outcome.CONTINUE)),
        (replace(again, exit_code=1), finished),
    ):
        decision = next_for(view, report)
        assert decision is not None and decision.kind is EntryKind.MISSED


@pytest.mark.parametrize(
    ("view", "report", "outcome"),
    [
        ({"exit_code": EXIT_NOT_CLAIMED}, None, "lost"),
        ({"exit_code": EXIT_BAD_ORDER}, None, "lost"),
        ({"exit_code": 1}, None, "lost"),
        # A continued attempt exits with 0 as well, and one of an earlier version with 85.
        ({"exit_code": 0}, None, "lost"),
        ({"exit_code": 85}, None, "lost"),
        ({"exit_code": 0}, replace(REPORT, logged_outcome=Outcome.CONTINUE), "continue"),
        ({"exit_code": 85}, replace(REPORT, logged_outcome=Outcome.CONTINUE), "continue"),
        (
            {"exit_code": 85, "restarts": 1},
            replace(REPORT, logged_outcome=Outcome.CONTINUE, earlier=(REPORT,)),
            "continue",
        ),
        ({"exit_code": None, "signal": 9}, REPORT, "evicted"),
        ({"exit_code": None, "signal": 9}, None, "lost"),
        ({"exit_code": None, "signal": 9, "outcome": Outcome.OVER_TIME}, REPORT, "over-time"),
        ({"exit_code": None, "outcome": Outcome.OVER_TIME}, None, "over-time"),
        ({"exit_code": None}, None, "lost"),
    ],
)
def test_a_logged_outcome_counts_and_without_one_the_schedulers_state(
    view: dict[str, Any], report: Report | None, outcome: str
) -> None:
    assert ending(next_for(replace(ENDED, **view), report))["outcome"] == outcome


def test_an_attempt_that_ends_after_a_cancellation_is_cancelled_unless_it_finished() -> None:
    asked = replace(RUN, cancel_asked="enough")
    killed = replace(ENDED, exit_code=None, signal=9)
    assert ending(next_for(killed, REPORT, run=asked))["outcome"] == "cancelled"
    crashed = replace(REPORT, logged_outcome=Outcome.CRASHED, signature="x")
    data = ending(next_for(ENDED, crashed, run=asked))
    assert (data["outcome"], data["detail"], data.get("signature")) == ("cancelled", "enough", None)
    finished = replace(REPORT, logged_outcome=Outcome.FINISHED)
    assert ending(next_for(ENDED, finished, run=asked))["outcome"] == "finished"


def test_a_cancellation_without_effect_is_sent_again() -> None:
    asked = replace(RUN, cancel_asked="enough")
    for sent, again in ((None, True), (NOW - 1, False), (NOW - CANCEL_AGAIN, True), (NOW + 9999, True)):
        decision = next_for(RUNNING, run=asked, attempt=replace(ATTEMPT, cancel_sent=sent))
        assert (decision is not None and decision.do is DecisionKind.CANCEL_JOB) is again


def test_a_job_that_is_listed_long_after_it_was_cancelled_is_given_up_unless_it_still_logs() -> None:
    """A host that is down never ends its jobs, and Grid Engine lists them for ever."""
    asked, long_ago = replace(RUN, cancel_asked="enough"), NOW - PATIENCE.longest_pause
    for since, sent, logged, given_up in (
        (long_ago, CANCELS, NOW - PATIENCE.heartbeat, True),
        (long_ago, CANCELS, NOW - PATIENCE.heartbeat + 1, False),
        (long_ago, CANCELS - 1, 0.0, False),
        (long_ago + 1, CANCELS, 0.0, False),
    ):
        stuck = replace(ATTEMPT, host="node1", cancel_sent=NOW, cancel_since=since, cancels=sent)
        report = replace(REPORT, last_logged=logged)
        decision = next_for(RUNNING, report, run=asked, attempt=stuck)
        assert (decision is not None and decision.do is DecisionKind.FENCE) is given_up
    ended = ending(after_fence(asked, stuck, report, False, PATIENCE, NOW))
    assert ended["outcome"] == "lost" and "node1 does not end the job" in ended["detail"]
    never_began = ending(after_fence(asked, stuck, None, True, PATIENCE, NOW))
    assert (never_began["outcome"], never_began["detail"]) == ("cancelled", "enough")


def test_a_job_that_waits_beyond_the_total_time_is_cancelled_but_a_running_one_continues() -> None:
    late = 900.0 + LIMITS.total + 1.0
    queued = replace(RUNNING, phase=JobPhase.QUEUED)
    decision = next_for(queued, attempt=replace(ATTEMPT, state=AttemptState.QUEUED), now=late)
    assert (
        decision is not None and decision.do is DecisionKind.CANCEL_JOB and "limits.total" in decision.reason
    )
    assert next_for(RUNNING, now=late) is None


CHAIN = replace(ATTEMPT, jobs=6, restarts=2, job="17,18,19")
WAITING = replace(RUNNING, phase=JobPhase.QUEUED, restarts=2)


def failed(outcome: Outcome = Outcome.OUT_OF_MEMORY, signature: str = "x", **changes: Any) -> Report:
    leg = replace(REPORT, saves=(), logged_outcome=outcome, detail="no room", signature=signature)
    return replace(leg, **changes)


def test_a_chain_goes_on_while_its_jobs_can_go_back_to_an_older_snapshot() -> None:
    crash = failed(Outcome.CRASHED, go_back=7)
    assert next_for(WAITING, replace(crash, earlier=(crash,)), CHAIN) is None
    evicted = replace(failed(Outcome.EVICTED, signature=""), earlier=(crash, crash))
    assert next_for(WAITING, evicted, CHAIN) is None
    oldest = replace(failed(Outcome.CRASHED), earlier=(crash, crash))
    assert next_for(WAITING, oldest, CHAIN) is not None


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.WRONG_OUTPUT])
def test_a_chain_is_ended_by_its_second_identical_failure_as_a_run_would_be(outcome: Outcome) -> None:
    twice = replace(failed(outcome), earlier=(failed(outcome),))
    for view in (WAITING, replace(WAITING, phase=JobPhase.RUNNING)):
        decision = next_for(view, twice, CHAIN)
        assert decision is not None and (decision.do, decision.kind) == (
            DecisionKind.CANCEL_JOB,
            EntryKind.CANCEL_SENT,
        )
        assert decision.reason == "the same failure twice: no room"
        assert decision.data["outcome"] == outcome.value
    assert next_for(WAITING, failed(outcome), CHAIN) is None
    before = replace(RUN, failure="x", failures=1)
    assert next_for(WAITING, failed(outcome), CHAIN, run=before) is not None


@pytest.mark.parametrize(
    "report",
    [
        replace(failed(), earlier=(failed(signature="y"),)),
        replace(failed(), earlier=(failed(), replace(REPORT, logged_outcome=Outcome.CONTINUE))),
        replace(failed(Outcome.EVICTED), earlier=(failed(Outcome.EVICTED),)),
        replace(REPORT, saves=(), earlier=(failed(),)),
    ],
    ids=["another failure", "progress in between", "a cluster error", "a running leg"],
)
def test_a_chain_continues_after_ends_that_a_run_continues_after(report: Report) -> None:
    assert next_for(WAITING, report, CHAIN) is None


def test_failures_with_only_evictions_in_between_count_as_consecutive() -> None:
    evicted = replace(failed(Outcome.EVICTED), signature=None)
    decision = next_for(WAITING, replace(failed(), earlier=(failed(), evicted)), CHAIN)
    assert decision is not None and decision.do is DecisionKind.CANCEL_JOB


def test_a_chain_that_was_ended_for_its_failures_is_not_retried() -> None:
    """Also if the next leg was running when the chain was ended."""
    condemned = replace(CHAIN, cancel_sent=NOW, condemned=(Outcome.OUT_OF_MEMORY, "twice: no room"))
    evicted = replace(REPORT, saves=(), logged_outcome=Outcome.EVICTED, detail="stopped by a signal")
    for last in (replace(failed(), earlier=(failed(),)), replace(evicted, earlier=(failed(), failed()))):
        data = ending(next_for(replace(ENDED, restarts=1), last, condemned))
        assert (data["outcome"], data["detail"]) == ("out-of-memory", "no room")
        assert (data["signature"], data["failures"]) == ("x", 2)


def test_a_chain_without_a_prepared_job_has_failed_as_often_as_it_was_started() -> None:
    view = replace(ENDED, exit_code=EXIT_NOT_PREPARED, restarts=5)
    assert ending(next_for(view, None, CHAIN))["failures"] == 6
    assert ending(next_for(view, None, ATTEMPT))["failures"] == 1


def test_a_job_that_ran_and_waits_again_is_recorded_as_requeued_with_the_reason() -> None:
    waits = replace(RUNNING, phase=JobPhase.QUEUED, started=None, reason="requeued, node n1 failed; pending")
    decision = next_for(waits)
    assert decision is not None and decision.kind is EntryKind.REQUEUED
    assert decision.data == {"reason": waits.reason, "restarts": 0}
    queued = replace(ATTEMPT, state=AttemptState.QUEUED, waits=waits.reason)
    assert next_for(waits, None, queued) is None


def test_the_line_of_the_profile_that_failed_is_shown_with_what_it_printed() -> None:
    printed = ("slurm_script: line 9: cd: /no: No such file", "%s cd /no" % SETUP_FAILED)
    seen = Observations({"a": replace(ENDED, exit_code=EXIT_NOT_PREPARED)}, output={"a": printed})
    data = ending(decide(RUN, ATTEMPT, seen, LIMITS, PATIENCE, NOW))
    assert data["outcome"] == "crashed" and data["detail"].endswith("container) failed: cd /no")
    assert data["signature"] == data["detail"] and tuple(data["account"]["tail"]) == printed


def test_starts_that_the_scheduler_forgot_are_booked_by_the_nodes_clock() -> None:
    """The scheduler lists the last start, of 80 s since 910; the one before logged 40 s."""
    before = replace(REPORT, claimed=850.0, logged_outcome=Outcome.EVICTED, spans=((Phase.COMPUTE, 40.0),))
    report = replace(REPORT, logged_outcome=Outcome.FINISHED, earlier=(before,))
    view = replace(ENDED, restarts=1)
    assert ending(next_for(view, report))["account"]["slot"] == 80.0
    assert ending(next_for(replace(view, since=910.0), report))["account"]["slot"] == 120.0
    assert ending(next_for(replace(view, elapsed=None), report))["account"]["slot"] == 111.0


GIVEN_UP = replace(ATTEMPT, state=AttemptState.ENDED, outcome=Outcome.LOST, account=AttemptAccount(slot=10.0))


def test_a_late_twin_is_cancelled_until_it_is_gone_and_booked_once() -> None:
    found = decide_twin(GIVEN_UP, RUNNING, NOW)
    assert found is not None and (found.do, found.kind) == (DecisionKind.CANCEL_JOB, EntryKind.TWIN_FOUND)
    twin = replace(GIVEN_UP, twin=True, cancel_sent=NOW)
    assert decide_twin(twin, RUNNING, NOW) is None
    again = decide_twin(twin, RUNNING, NOW + CANCEL_AGAIN)
    assert again is not None and again.do is DecisionKind.CANCEL_JOB
    over = decide_twin(twin, ENDED, NOW)
    assert over is not None and over.kind is EntryKind.TWIN_ENDED and over.data["slot"] == 70.0


def test_an_old_listing_does_not_book_a_twin_again() -> None:
    booked = replace(GIVEN_UP, twin_slot=70.0)
    assert decide_twin(booked, ENDED, NOW) is None
    again = decide_twin(replace(booked, twin=True), ENDED, NOW)
    assert again is not None and again.data["slot"] == 0.0


def test_the_end_that_an_attempt_was_lost_by_is_no_twin() -> None:
    assert decide_twin(replace(GIVEN_UP, account=AttemptAccount(slot=80.0)), ENDED, NOW) is None
    assert decide_twin(replace(GIVEN_UP, outcome=Outcome.FINISHED), RUNNING, NOW) is None


def test_where_files_lag_behind_the_scheduler_the_log_of_an_ended_job_is_waited_for() -> None:
    killed = Observations({"a": replace(ENDED, exit_code=None, signal=9)})
    lagging = replace(PATIENCE, files=45.0)
    waits = decide(RUN, ATTEMPT, killed, LIMITS, lagging, NOW)
    assert waits is not None and waits.kind is EntryKind.MISSED
    missed = replace(ATTEMPT, missed=NOW)
    assert decide(RUN, missed, killed, LIMITS, lagging, NOW + 44) is None
    ending(decide(RUN, missed, killed, LIMITS, lagging, NOW + 45))
    ending(decide(RUN, ATTEMPT, killed, LIMITS, PATIENCE, NOW))
