"""The state that `status` shows, by the journal, the logs of the job, and the scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.cli.common import show_time
from outlast.cli.current_state import SILENT_AFTER, CurrentState, of_attempt, of_waiting
from outlast.domain.model import Attempt, AttemptState, Ending, Outcome, Run, RunState, Spec
from outlast.domain.observation import JobPhase, JobView
from outlast.exchange.attempt_log import Glance

NOW = 1_800_000_000.0
RUN = Run("r", 0, 1, {}, RunState.ACTIVE, NOW - 900, NOW - 900, attempts=1, current="a")
ATTEMPT = Attempt("r", 1, "a", AttemptState.RUNNING, NOW - 900, job="17", host="n1", started=NOW - 800)
QUEUED = replace(ATTEMPT, state=AttemptState.QUEUED, host="", started=None, queued=NOW - 890)
LOGGED = Glance(leg=1, host="n1", claimed=NOW - 800, last_logged=NOW - 5)


def state(
    attempt: Attempt = ATTEMPT, logged: Glance | None = LOGGED, view: JobView | None = None, run: Run = RUN
) -> CurrentState:
    return of_attempt(run, attempt, logged, {"a": view} if view else None, supervised=False, now=NOW)


def test_a_job_that_logs_is_running_also_if_its_start_is_not_recorded_yet() -> None:
    for attempt in (ATTEMPT, QUEUED):
        seen = state(attempt)
        assert (seen.word, seen.detail, seen.since, seen.running) == ("running", "on n1", NOW - 800, True)


@pytest.mark.parametrize("logged", [replace(LOGGED, last_logged=NOW - SILENT_AFTER - 1), None])
def test_a_silent_job_is_shown_with_the_time_at_which_it_was_last_seen(logged: Glance | None) -> None:
    seen = state(logged=logged)
    last = logged.last_logged if logged else NOW - 800
    assert (seen.word, seen.detail) == ("unknown", "last seen running %s on n1" % show_time(last))


def test_a_job_that_has_logged_its_end_is_not_shown_as_running() -> None:
    seen = state(logged=replace(LOGGED, outcome=Outcome.CRASHED, detail="ValueError: no such layer"))
    assert seen.word == "ended"
    assert seen.detail == (
        "attempt 1 ended as crashed: ValueError: no such layer; `outlast up` or `outlast tick` continues"
    )


def test_between_the_jobs_of_a_chain_the_next_one_is_waited_for() -> None:
    seen = state(replace(ATTEMPT, jobs=3), replace(LOGGED, outcome=Outcome.CONTINUE))
    assert (seen.word, seen.detail) == (
        "queued",
        "job 1 of its chain ended as continue; waiting for the next",
    )


def test_after_cancel_a_run_is_cancelling() -> None:
    assert state(run=replace(RUN, cancel_asked="cancelled by the user")).word == "cancelling"
    sent = replace(ATTEMPT, cancel_sent=NOW, cancel_since=NOW, condemned=(Outcome.EVICTED, "no progress"))
    assert (state(sent).word, state(sent).detail) == ("cancelling", "no progress")


def test_a_requeued_job_is_shown_with_the_reason() -> None:
    requeued = replace(
        ATTEMPT, state=AttemptState.QUEUED, waits="requeued, node n1 failed; pending", waits_since=NOW - 50
    )
    seen = state(requeued, replace(LOGGED, last_logged=NOW - 100))
    # The log is that of the start before.
    assert (seen.word, seen.detail) == ("requeued", "requeued, node n1 failed; pending")


def test_what_the_scheduler_lists_now_counts_more_than_the_journal() -> None:
    waits = JobView("a", "17", JobPhase.QUEUED, reason="pending until resources are free")
    assert (state(view=waits).word, state(view=waits).detail) == ("requeued", waits.reason)
    assert state(QUEUED, None, waits).word == "queued"
    running = JobView("a", "17", JobPhase.RUNNING, "n2", started=NOW - 3)
    assert (state(QUEUED, None, running).word, state(QUEUED, None, running).detail) == ("running", "on n2")
    assert of_attempt(RUN, ATTEMPT, LOGGED, {}, supervised=False, now=NOW).word == "missing"


def test_the_end_of_a_start_does_not_hide_the_next_one() -> None:
    again = JobView("a", "17", JobPhase.RUNNING, "n2", started=NOW - 3, restarts=1)
    assert state(logged=replace(LOGGED, outcome=Outcome.EVICTED), view=again).word == "running"


def test_a_waiting_run_is_shown_with_what_it_waits_for() -> None:
    waiting = replace(RUN, state=RunState.WAITING, current=None, attempts=0)
    assert of_waiting(waiting, None, 0, supervised=False).detail.startswith("for `outlast up`")
    spec = Spec("x", "true", parallel=2)
    assert (
        of_waiting(waiting, spec, 2, supervised=True).detail
        == "for one of 2 active runs to end (parallel: 2)"
    )
    assert of_waiting(waiting, spec, 1, supervised=True).detail == "for its turn to be submitted"
    ended = Ending(1, "a", Outcome.NETWORK, "the server does not respond", NOW - 3)
    paused = replace(waiting, attempts=1, last=ended, troubles=1)
    assert of_waiting(paused, spec, 0, supervised=True).detail == (
        "for the end of a pause between attempts; attempt 1 ended as network: the server does not respond"
    )


def test_a_run_that_was_resumed_or_retried_waits_since_then() -> None:
    last = Ending(1, "a", Outcome.EVICTED, "preempted", at=NOW - 500)
    waiting = replace(RUN, state=RunState.WAITING, current=None, last=last)
    assert of_waiting(waiting, None, 0, supervised=False).since == NOW - 500
    assert of_waiting(replace(waiting, since=NOW - 9), None, 0, supervised=False).since == NOW - 9


def test_a_run_that_has_finished_without_a_controller_only_waits_for_its_publication() -> None:
    seen = state(logged=replace(LOGGED, outcome=Outcome.FINISHED))
    assert seen.detail == "attempt 1 ended as finished; `outlast up` or `outlast tick` publishes its results"
