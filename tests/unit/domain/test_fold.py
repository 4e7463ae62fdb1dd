"""Every row of both transition tables, that no other entry is accepted, and counts across attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.domain.accounts import AttemptAccount, read_account
from outlast.domain.fold import MOST_AVOIDED_HOSTS, ImpossibleStep, apply
from outlast.domain.model import (
    ATTEMPT_KINDS,
    ATTEMPT_STEPS,
    RUN_STEPS,
    Attempt,
    AttemptState,
    Cause,
    Ending,
    EntryKind,
    JournalEntry,
    Outcome,
    Removal,
    Run,
    RunState,
)

DATA: dict[EntryKind, dict[str, Any]] = {
    EntryKind.ADDED: {"position": 3, "spec": 1, "params": {"lr": "1e-3"}},
    EntryKind.INTENDED: {"number": 1, "reason": "first attempt", "avoid": ["bad"]},
    EntryKind.QUEUED: {"job": "17"},
    EntryKind.STARTED: {"job": "17", "host": "node1", "started": 5.0},
    EntryKind.REQUEUED: {"restarts": 1},
    EntryKind.ENDED: {"outcome": "evicted", "detail": "gone"},
    EntryKind.TWIN_ENDED: {"slot": 7.0},
}


def entry(kind: EntryKind, at: float = 10.0, **data: Any) -> JournalEntry:
    token = "a" if kind in ATTEMPT_KINDS or kind is EntryKind.ACCEPTED else None
    return JournalEntry(at, "r", kind, token, {"reason": "why", **DATA.get(kind, {}), **data})


def a_run(state: RunState = RunState.ACTIVE, **changes: Any) -> Run:
    run = Run(name="r", position=0, spec=1, params={}, state=state, added=0.0, since=0.0, current="a")
    return replace(run, attempts=1, **changes)


def an_attempt(state: AttemptState = AttemptState.RUNNING, **changes: Any) -> Attempt:
    return replace(Attempt(run="r", number=1, token="a", state=state, intended=1.0), **changes)


def ending(run: Run, outcome: Outcome, attempt: Attempt | None = None, **data: Any) -> Run:
    attempt = attempt or an_attempt()
    facts = {"outcome": outcome.value, "account": attempt.account.to_dict(), **data}
    after, _ = apply(run, attempt, entry(EntryKind.ENDED, **facts))
    return replace(after, state=RunState.ACTIVE)


@pytest.mark.parametrize(("before", "kind"), list(RUN_STEPS), ids=str)
def test_each_row_of_the_runs_table_is_taken(before: RunState | None, kind: EntryKind) -> None:
    run = a_run(before) if before else None
    attempt = an_attempt() if kind is EntryKind.ENDED else None
    after, _ = apply(run, attempt, entry(kind))
    assert after.state is RUN_STEPS[before, kind]


@pytest.mark.parametrize("before", [None, *RunState], ids=str)
def test_no_other_entry_changes_a_run(before: RunState | None) -> None:
    run = a_run(before) if before else None
    for kind in EntryKind:
        if (before, kind) in RUN_STEPS:
            continue
        if run is not None and kind in ATTEMPT_KINDS and kind not in (EntryKind.INTENDED, EntryKind.ENDED):
            state = next(s for s, k in ATTEMPT_STEPS if k is kind)
            assert apply(run, an_attempt(state) if state else None, entry(kind))[0] == run
            continue
        attempt = an_attempt() if kind in ATTEMPT_KINDS and kind is not EntryKind.INTENDED else None
        with pytest.raises(ImpossibleStep):
            apply(run, attempt, entry(kind))


@pytest.mark.parametrize(("before", "kind"), list(ATTEMPT_STEPS), ids=str)
def test_each_row_of_the_attempts_table_is_taken(before: AttemptState | None, kind: EntryKind) -> None:
    run = a_run(RunState.WAITING if kind is EntryKind.INTENDED else RunState.ACTIVE)
    _, after = apply(run, an_attempt(before) if before else None, entry(kind))
    assert after is not None and after.state is ATTEMPT_STEPS[before, kind]


@pytest.mark.parametrize("before", [None, *AttemptState], ids=str)
def test_no_other_entry_changes_an_attempt(before: AttemptState | None) -> None:
    for kind in ATTEMPT_KINDS:
        if (before, kind) not in ATTEMPT_STEPS:
            with pytest.raises(ImpossibleStep):
                apply(a_run(), an_attempt(before) if before else None, entry(kind))


def test_the_facts_in_an_entry_are_kept() -> None:
    run, attempt = apply(a_run(RunState.WAITING), None, entry(EntryKind.INTENDED))
    assert attempt is not None and (attempt.number, attempt.avoid) == (1, ("bad",))
    assert run.current == "a" and run.attempts == 1
    run, attempt = apply(run, attempt, entry(EntryKind.QUEUED, at=11.0))
    run, attempt = apply(run, attempt, entry(EntryKind.STARTED, job=""))
    assert attempt is not None
    assert (attempt.job, attempt.queued, attempt.host, attempt.started) == ("17", 11.0, "node1", 5.0)
    run, attempt = apply(run, attempt, entry(EntryKind.ENDED, at=20.0, account={"slot": 9.0}))
    assert attempt is not None and (attempt.ended, attempt.account) == (20.0, AttemptAccount(slot=9.0))
    assert run.current is None and run.last is not None and run.last.host == "node1" and run.ran == 1


def test_a_job_is_missing_until_it_is_listed_again() -> None:
    run, attempt = apply(a_run(), an_attempt(), entry(EntryKind.MISSED, at=33.0))
    assert attempt is not None and attempt.missed == 33.0
    _, seen = apply(run, attempt, entry(EntryKind.SEEN))
    assert seen is not None and seen.missed is None
    _, found = apply(run, replace(attempt, state=AttemptState.UNSURE), entry(EntryKind.QUEUED))
    assert found is not None and found.missed is None


def test_the_time_of_a_twin_adds_up() -> None:
    run, attempt = a_run(), an_attempt(AttemptState.ENDED)
    for _ in range(2):
        run, found = apply(run, attempt, entry(EntryKind.TWIN_FOUND))
        assert found is not None and found.twin
        run, attempt = apply(run, found, entry(EntryKind.TWIN_ENDED))  # type: ignore[assignment]
    assert (attempt.twin, attempt.twin_slot) == (False, 14.0)


def test_a_higher_step_is_progress_and_the_same_one_is_not() -> None:
    run = ending(a_run(), Outcome.OVER_TIME, step=5, computed=True)
    assert (run.best_step, run.stuck) == (5, 0)
    run = ending(run, Outcome.OVER_TIME, step=5, computed=True)
    run = ending(run, Outcome.OVER_TIME, step=4, computed=True, changed=True)
    assert (run.best_step, run.stuck, run.stuck_any) == (5, 2, 2)
    run = ending(run, Outcome.OVER_TIME, step=6, computed=True)
    assert (run.best_step, run.stuck, run.stuck_any) == (6, 0, 0)


def test_without_steps_a_change_of_the_checkpoints_is_progress() -> None:
    run = ending(a_run(stuck=2, stuck_any=2), Outcome.OVER_TIME, changed=True, computed=True)
    assert (run.stuck, run.stuck_any) == (0, 0)
    assert ending(run, Outcome.OVER_TIME, computed=True).stuck == 1


def test_attempts_that_the_cluster_ends_count_only_towards_the_longer_limit() -> None:
    run = ending(a_run(), Outcome.EVICTED, computed=True)
    assert (run.stuck, run.stuck_any) == (0, 1)
    run = ending(run, Outcome.LOST)
    assert (run.stuck, run.stuck_any) == (0, 1)  # it never computed


def test_the_same_failure_is_counted_across_attempts() -> None:
    run = ending(a_run(), Outcome.CRASHED, signature="x")
    run = ending(run, Outcome.EVICTED)
    run = ending(run, Outcome.CRASHED, signature="x")
    assert run.failures == 2
    assert ending(run, Outcome.CRASHED, signature="y").failures == 1
    assert ending(run, Outcome.CRASHED, signature="y", failures=2).failures == 2
    assert ending(run, Outcome.CRASHED, signature="x", failures=2).failures == 4
    assert ending(run, Outcome.CONTINUE, step=1).failures == 0


def test_a_repeated_cluster_error_does_not_count_as_a_failure_of_the_training() -> None:
    run = a_run()
    for _ in range(3):
        run = ending(run, Outcome.OUT_OF_DISK, signature="no space")
    assert (run.failures, run.troubles) == (0, 3)
    run = ending(a_run(failure="x", failures=1), Outcome.CORRUPT_INPUT)
    assert (run.failure, run.failures) == ("x", 1)


def test_permanently_wrong_or_missing_data_counts_as_a_failure() -> None:
    run = ending(ending(a_run(), Outcome.NOT_FOUND, signature="x"), Outcome.NOT_FOUND, signature="x")
    assert run.failures == 2
    assert ending(ending(a_run(), Outcome.NOT_FOUND), Outcome.NOT_FOUND).failures == 0


def test_an_outage_lasts_from_the_first_attempt_that_was_turned_back_to_another_end() -> None:
    run = ending(a_run(), Outcome.NETWORK)
    assert run.outage_since == 10.0
    assert ending(replace(run, outage_since=5.0), Outcome.NOT_FOUND).outage_since == 5.0
    assert ending(run, Outcome.NETWORK, computed=True).outage_since is None
    assert ending(run, Outcome.NOT_FOUND, transient=False).outage_since is None
    assert ending(run, Outcome.CRASHED).outage_since is None
    retried, _ = apply(replace(run, state=RunState.FAILED, current=None), None, entry(EntryKind.RETRIED))
    assert retried.outage_since is None


def test_an_attempt_that_was_turned_back_does_not_count() -> None:
    run = ending(a_run(), Outcome.NETWORK, account={"slot": 10.0})
    assert (run.ran, run.troubles) == (0, 1)
    assert ending(a_run(), Outcome.NETWORK, account={"slot": 10.0}, computed=1).ran == 1
    assert ending(a_run(), Outcome.NOT_FOUND, account={"slot": 10.0}, transient=False).ran == 1


def test_cluster_errors_add_up_until_an_attempt_computes() -> None:
    run = ending(ending(a_run(), Outcome.LOST), Outcome.REJECTED)
    assert run.troubles == 2
    assert ending(run, Outcome.EVICTED, computed=True).troubles == 0


def test_hosts_that_failed_are_remembered_newest_last_up_to_a_limit() -> None:
    run = a_run()
    for number in [*range(MOST_AVOIDED_HOSTS + 2), 3]:
        run = ending(run, Outcome.STALLED, an_attempt(host="node%d" % number))
    assert [host for host, _ in run.sour_hosts] == ["node2", "node4", "node5", "node6", "node3"]


@pytest.mark.parametrize("cause", [Cause.ACCESS_POINT, Cause.UNKNOWN])
def test_an_error_that_no_host_caused_lengthens_the_pause_and_avoids_no_host(cause: Cause) -> None:
    attempt = an_attempt(host="node1", account=AttemptAccount(slot=1.0))
    run = ending(a_run(), Outcome.NETWORK, attempt, cause=cause.value, computed=1)
    assert (run.troubles, run.sour_hosts, run.stuck, run.stuck_any) == (1, (), 0, 1)
    assert run.last is not None and run.last.cause is cause


def test_the_cause_of_a_cancellation_belongs_to_its_outcome() -> None:
    held = {"outcome": "network", "reason": "held", "cause": "access-point"}
    _, attempt = apply(a_run(), an_attempt(), entry(EntryKind.CANCEL_SENT, **held))
    assert attempt is not None and attempt.cause is Cause.ACCESS_POINT
    _, by_hand = apply(a_run(), attempt, entry(EntryKind.CANCEL_SENT, reason="requested"))
    assert by_hand is not None and by_hand.cause is Cause.ACCESS_POINT
    _, other = apply(a_run(), attempt, entry(EntryKind.CANCEL_SENT, outcome="evicted"))
    assert other is not None and other.cause is None


def worked(seconds: float, **account: Any) -> Attempt:
    raw = {"slot": seconds + 2, "spans": [["stage", 2.0], ["compute", seconds]], **account}
    return an_attempt(account=read_account(raw))


def test_compute_time_and_interruptions_add_up_over_attempts() -> None:
    run = ending(a_run(), Outcome.EVICTED, worked(100.0, signal=9))
    assert (run.observed, run.interruptions) == (100.0, 1)
    run = ending(run, Outcome.CONTINUE, worked(3000.0, code=85))
    run = ending(run, Outcome.LOST, worked(50.0))
    run = ending(run, Outcome.LOST)
    assert (run.observed, run.interruptions) == (3150.0, 2)
    run = ending(run, Outcome.CRASHED, worked(10.0, code=1))
    assert (run.observed, run.interruptions) == (3160.0, 2)


def test_the_cost_of_a_save_comes_from_the_last_attempt_that_saved() -> None:
    saved = {"times": 4, "seconds": 12.0, "slowest": 5.0}
    run = ending(a_run(), Outcome.EVICTED, worked(100.0, saving=2.0, saved=saved))
    assert (run.save_blocked, run.save_durable) == (0.5, 5.0)
    run = ending(run, Outcome.EVICTED, worked(100.0))
    assert (run.save_blocked, run.save_durable) == (0.5, 5.0)
    again, _ = apply(replace(run, state=RunState.FAILED), None, entry(EntryKind.RETRIED))
    assert (again.save_blocked, again.save_durable) == (None, None)
    assert (again.observed, again.interruptions) == (200.0, 2), "the cluster has not changed"


def test_a_retry_resets_all_counts_but_the_number_of_attempts() -> None:
    failed = a_run(RunState.FAILED, ran=9, stuck=3, failures=2, failure="x", best_step=7, cancel_asked="c")
    run, _ = apply(failed, None, entry(EntryKind.RETRIED, at=99.0, spec=2))
    assert (run.state, run.since, run.spec, run.attempts, run.best_step) == (
        RunState.WAITING,
        99.0,
        2,
        1,
        None,
    )
    assert (run.ran, run.stuck, run.failures, run.failure, run.cancel_asked) == (0, 0, 0, None, "")


@pytest.mark.parametrize("facts", [{"saved": True}, {"best_step": 7}], ids=["now", "earlier versions"])
def test_a_run_has_saved_nothing_after_a_retry_from_scratch_and_after_no_other(facts: dict[str, Any]) -> None:
    failed = a_run(RunState.FAILED, **facts)
    resumed, _ = apply(failed, None, entry(EntryKind.RETRIED, spec=2))
    begun, _ = apply(failed, None, entry(EntryKind.RETRIED, spec=2, from_scratch=True))
    assert (resumed.saved, begun.saved) == (True, False)


def resumed_from(resumed: int | None) -> Attempt:
    return an_attempt(account=AttemptAccount(slot=5.0, loaded=True, resumed=resumed))


def test_lost_checkpoints_count_as_one_attempt_without_progress() -> None:
    run = a_run(best_step=10_000)
    run = ending(run, Outcome.OVER_TIME, resumed_from(None), step=500, computed=True)
    assert (run.stuck, run.best_step) == (1, 500)
    run = ending(run, Outcome.OVER_TIME, resumed_from(500), step=1000, computed=True)
    assert (run.stuck, run.best_step) == (0, 1000)


def test_a_checkpoint_that_is_lost_each_time_is_no_progress() -> None:
    run = a_run(best_step=60)
    for expected in (1, 2, 3):
        run = ending(run, Outcome.OVER_TIME, resumed_from(50), step=60, computed=True)
        assert run.stuck == expected


def test_a_kill_from_outside_is_no_failure_of_a_training_that_progresses() -> None:
    killed = an_attempt(account=AttemptAccount(slot=5.0, signal=9))
    run = a_run()
    for step in (1, 2, 3):
        run = ending(run, Outcome.CRASHED, killed, step=step, computed=True, signature="signal 9")
        assert run.failures == 0
    for count in (1, 2):
        run = ending(run, Outcome.CRASHED, killed, computed=True, signature="signal 9")
        assert run.failures == count


def test_a_resumed_run_remembers_that_the_user_continued_it() -> None:
    last = Ending(1, "a", Outcome.CANCELLED, "by uid 0", at=5.0, removed=Removal.OTHER)
    held = a_run(RunState.HELD_BACK, current=None, last=last, reason="another user removed its job")
    after, _ = apply(held, None, entry(EntryKind.RESUMED, at=20.0))
    assert (after.state, after.reason, after.since) == (RunState.WAITING, "", 20.0)
    assert after.last == replace(last, resumed=True)


def test_the_next_removal_by_another_user_counts_anew_after_a_run_was_resumed() -> None:
    last = Ending(1, "a", Outcome.CANCELLED, "by uid 0", at=5.0, removed=Removal.OTHER, resumed=True)
    again = ending(a_run(last=last), Outcome.CANCELLED, removed="other")
    assert again.last is not None and (again.last.removed, again.last.resumed) == (Removal.OTHER, False)


def test_a_run_that_is_resumed_before_it_has_begun_has_no_last_attempt() -> None:
    after, _ = apply(a_run(RunState.HELD_BACK, current=None), None, entry(EntryKind.RESUMED))
    assert (after.state, after.last) == (RunState.WAITING, None)
