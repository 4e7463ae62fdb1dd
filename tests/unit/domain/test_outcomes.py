"""Raw facts of node, exchange, scheduler and journal, and the one outcome that follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.domain import outcomes
from outlast.domain.attempt_end import end_attempt
from outlast.domain.fold import apply
from outlast.domain.model import (
    Attempt,
    AttemptState,
    EntryKind,
    JournalEntry,
    Outcome,
    Phase,
    Removal,
    Run,
    RunState,
)
from outlast.domain.observation import JobPhase, JobView, Report
from outlast.domain.outcomes import Conclusion
from outlast.node.protocol import STOP_AT_LIMIT, STOP_SIGNALLED

RUN = Run("r", 0, 1, {}, RunState.ACTIVE, added=0.0, since=0.0, attempts=1, current="a")
ATTEMPT = Attempt("r", 1, "a", AttemptState.RUNNING, intended=0.0)
ENDED = JobView("a", "17", JobPhase.ENDED, "node1")
CONTINUED = Report(logged_outcome=Outcome.CONTINUE, detail="saved and left")


def test_a_leg_that_logged_no_end_has_no_outcome() -> None:
    assert outcomes.of_leg(Report(stopped_by=STOP_SIGNALLED, delivery_error="gone")) is None


@pytest.mark.parametrize("outcome", Outcome)
def test_what_was_logged_stands_unless_a_fact_overrules_it(outcome: Outcome) -> None:
    leg = Report(logged_outcome=outcome, detail="as logged", signature="x")
    found = (outcomes.of_leg(leg), outcomes.detail_of(leg), outcomes.signature_of(leg))
    assert found == (outcome, "as logged", "x")


def test_only_leaving_after_a_signal_is_an_eviction() -> None:
    for stopped_by, outcome in (
        ("", Outcome.CONTINUE),
        (STOP_AT_LIMIT, Outcome.CONTINUE),
        (STOP_SIGNALLED, Outcome.EVICTED),
    ):
        assert outcomes.of_leg(replace(CONTINUED, stopped_by=stopped_by)) is outcome
    crashed = Report(logged_outcome=Outcome.CRASHED, stopped_by=STOP_SIGNALLED)
    assert outcomes.of_leg(crashed) is Outcome.CRASHED


def test_a_delivery_error_matters_only_to_an_attempt_that_finished() -> None:
    wrong = Report(logged_outcome=Outcome.FINISHED, detail="done", delivery_error="model.npz is not there")
    assert outcomes.of_leg(wrong) is Outcome.WRONG_OUTPUT
    assert outcomes.detail_of(wrong) == outcomes.signature_of(wrong) == "model.npz is not there"
    crashed = replace(wrong, logged_outcome=Outcome.CRASHED, signature="x")
    assert outcomes.of_leg(crashed) is Outcome.CRASHED
    assert (outcomes.detail_of(crashed), outcomes.signature_of(crashed)) == ("done", "x")


def test_a_job_that_the_scheduler_killed_for_its_memory_did_not_merely_crash() -> None:
    view = replace(ENDED, outcome=Outcome.OUT_OF_MEMORY, reason="used more than 2 GB")
    crashed = Report(logged_outcome=Outcome.CRASHED, detail="killed by signal 9")
    assert outcomes.from_report(RUN, ATTEMPT, view, crashed) == Conclusion(
        Outcome.OUT_OF_MEMORY, "used more than 2 GB"
    )
    assert outcomes.from_report(RUN, ATTEMPT, ENDED, crashed).outcome is Outcome.CRASHED


def test_an_attempt_that_saved_and_left_because_its_job_was_removed_names_the_removal() -> None:
    view = replace(ENDED, outcome=Outcome.CANCELLED, reason="cancelled with scancel")
    stopped = replace(CONTINUED, stopped_by=STOP_SIGNALLED)
    assert outcomes.from_report(RUN, ATTEMPT, view, stopped) == Conclusion(
        Outcome.EVICTED, "cancelled with scancel: saved and left"
    )


def test_a_job_without_a_logged_end_is_described_by_its_exit_code_or_signal() -> None:
    for view, report, expected in (
        (
            replace(ENDED, exit_code=1),
            None,
            (Outcome.LOST, "ended without logging an outcome, with exit code 1"),
        ),
        (ENDED, None, (Outcome.LOST, "ended without logging an outcome")),
        (replace(ENDED, signal=9), Report(), (Outcome.EVICTED, "killed without warning by signal 9")),
        (replace(ENDED, reason="its node failed"), None, (Outcome.LOST, "its node failed")),
    ):
        assert outcomes.from_scheduler(view, report) == expected
    late = replace(ENDED, outcome=Outcome.OVER_TIME)
    computing = Report(spans=((Phase.COMPUTE, 1.0),))
    assert outcomes.from_scheduler(late, computing).detail == "killed at the time limit, in its phase compute"


def test_a_job_that_ran_and_vanished_has_a_sentence_of_its_own() -> None:
    detail = "the job vanished from the queue without logging an outcome"
    assert outcomes.when_silent(ATTEMPT) == Conclusion(Outcome.LOST, detail)


@pytest.mark.parametrize("removed", Removal)
def test_how_a_job_was_removed_reaches_the_policy_through_the_journal(removed: Removal) -> None:
    view = replace(ENDED, removed=removed)
    decision = end_attempt(RUN, ATTEMPT, view, None, Conclusion(Outcome.EVICTED, "gone"), 9.0)
    assert ("removed" in decision.data) is (removed is not Removal.NO)
    run, _ = apply(RUN, ATTEMPT, JournalEntry(9.0, "r", EntryKind.ENDED, "a", decision.data))
    assert run.last is not None and run.last.removed is removed
