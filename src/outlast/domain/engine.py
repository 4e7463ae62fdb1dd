"""Pure decisions: from state, observations and the time to what happens next, and why.

No clock, no file, no randomness. The controller, the simulator and the property tests call the same
functions. `decide` returns the next decision for one run; the caller repeats it until there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.domain import outcomes, untrusted
from outlast.domain.alike_failures import HoldBack
from outlast.domain.attempt_end import count_failures, end_attempt, end_by_report
from outlast.domain.decision import Decision, DecisionKind, record
from outlast.domain.model import Attempt, AttemptState, Cause, EntryKind, Limits, Outcome, Run, RunState
from outlast.domain.observation import JobPhase, JobView, Observations, Patience, Report
from outlast.domain.policy import CLUSTER_PATIENCE, Action, judge, nothing_saved
from outlast.node.failure_streak import FailureStreak

#: Seconds that a run avoids a host where the cluster caused an attempt to fail.
AVOID_HOST_FOR = 2 * 3600.0
#: A cancellation without effect is sent again after this many seconds.
CANCEL_AGAIN = 60.0
#: A job is given up only after its cancellation was sent this often.
CANCELS = 3
#: A held job is released at most this often.
MOST_RELEASES = 3
#: A job may give another reason for waiting at each poll: the n-th is recorded n times this many seconds
#: after the last.
WAITS_AGAIN = 60.0


def decide(
    run: Run,
    attempt: Attempt | None,
    seen: Observations,
    limits: Limits,
    patience: Patience,
    now: float,
    hold_back: HoldBack | None = None,
) -> Decision | None:
    """Return the next decision about `run`, whose current attempt is `attempt`; None: wait.

    `hold_back`: why it must not begin (see `alike_failures`).
    """
    if run.state.over:
        return None
    if run.state is RunState.HELD_BACK:
        cancelled = run.cancel_asked
        return record(run, EntryKind.CANCELLED, None, cancelled) if cancelled else None
    if run.state is RunState.ACCEPTED:
        return Decision(DecisionKind.PUBLISH, run.name, token=run.accepted)
    if attempt is not None:
        return _watch(run, attempt, seen, limits, patience, now, hold_back)
    verdict = judge(run, limits, patience, now)
    if verdict.action is Action.ACCEPT:
        assert run.last is not None
        return record(run, EntryKind.ACCEPTED, run.last.token, verdict.reason)
    if run.cancel_asked:
        return record(run, EntryKind.CANCELLED, None, run.cancel_asked)
    if verdict.action is Action.FAIL:
        alike = {"alike": verdict.alike} if verdict.alike else None
        return record(run, EntryKind.FAILED, None, verdict.reason, alike)
    if verdict.action is Action.HOLD:
        return record(run, EntryKind.HELD_BACK, None, verdict.reason)
    if hold_back is not None:
        return record(run, EntryKind.HELD_BACK, None, hold_back.reason) if hold_back.final else None
    if now < verdict.due:
        return None
    recent = (host for host, at in run.sour_hosts if 0 <= now - at < AVOID_HOST_FOR)
    avoid = [host for host in recent if untrusted.host(host)]  # older versions recorded any name
    data: dict[str, Any] = {"avoid": avoid, "happened": verdict.happened, "decided": verdict.decided}
    if verdict.start_before is not None:
        data["start_before"] = verdict.start_before
    return Decision(DecisionKind.START, run.name, verdict.reason, data=data)


def decide_twin(attempt: Attempt, view: JobView, now: float) -> Decision | None:
    """Decide about a listed job whose attempt is over: cancel it, and book its time as waste."""
    given_up = attempt.outcome in (Outcome.LOST, Outcome.REJECTED)
    if not given_up and not attempt.twin and view.restarts <= attempt.restarts:
        return None  # an old listing, one that is about to be forgotten, or what is left of a chain
    if view.phase is not JobPhase.ENDED:
        if attempt.twin and _sent_recently(attempt, now):
            return None
        reason = "job %s turned up after attempt %d had been given up" % (view.job, attempt.number)
        return Decision(DecisionKind.CANCEL_JOB, attempt.run, reason, attempt.token, EntryKind.TWIN_FOUND)
    # Old listings may show the end, and even the job itself, again: only what is not booked yet counts.
    booked = attempt.account.slot_seconds + attempt.twin_slot
    unbooked = max(0.0, (view.elapsed or 0.0) - booked)
    if attempt.twin or unbooked >= 0.001:
        return Decision(
            DecisionKind.RECORD, attempt.run, "", attempt.token, EntryKind.TWIN_ENDED, {"slot": unbooked}
        )
    return None


def after_fence(
    run: Run, attempt: Attempt, report: Report | None, won: bool, patience: Patience, now: float
) -> Decision | None:
    """Decide after a fence. `won`: no job has run, and none will; else one has, and may be silent since."""
    if won:
        return end_attempt(run, attempt, None, None, outcomes.when_fenced(run, attempt), now)
    if report is not None and (_finished(report) or outcomes.is_final(report, attempt.restarts)):
        return end_by_report(run, attempt, None, report, now)
    if report is None and _missed_recently(attempt, patience, now):
        return None
    if report is not None and _logged_recently(report, patience, now):
        return None
    return end_attempt(run, attempt, None, report, outcomes.when_silent(attempt), now)


def _missed_recently(attempt: Attempt, patience: Patience, now: float) -> bool:
    # A claim without any log is a job that died at once, or not the work of a job at all: it may be garbage.
    return attempt.missed is None or abs(now - attempt.missed) < patience.missing + patience.heartbeat


def _finished(report: Report | None) -> bool:
    return report is not None and outcomes.of_leg(report) is Outcome.FINISHED


def _watch(
    run: Run,
    attempt: Attempt,
    seen: Observations,
    limits: Limits,
    patience: Patience,
    now: float,
    hold_back: HoldBack | None,
) -> Decision | None:
    if attempt.state is AttemptState.INTENDED:
        # Only a controller that died in between leaves this behind.
        reason = "it is not known whether the job was submitted"
        return record(run, EntryKind.UNSURE, attempt.token, reason)
    if seen.jobs is None:
        return None
    view = seen.jobs.get(attempt.token)
    report = seen.reports.get(attempt.token)
    if view is None:
        return _watch_missing(run, attempt, report, patience, now)
    if view.phase is JobPhase.ENDED:
        if outcomes.failed_before_training(view, report):
            output = seen.output.get(attempt.token, ())
            conclusion = outcomes.of_failed_preparation(output)
            return end_attempt(run, attempt, view, None, conclusion, now, output)
        return _watch_ended(run, attempt, view, report, patience, now)
    again = view.restarts > attempt.restarts
    chained = again or attempt.jobs > 1
    if chained and view.phase is not JobPhase.RUNNING and report and _finished(report):
        # The last start of the job finished the run; what else waits under its token is left over.
        return end_by_report(run, attempt, None, report, now)
    if view.phase is JobPhase.RUNNING and report and _ended_long_ago(report, view, patience, now):
        # The scheduler has not noticed that the job is over. What it still lists is cancelled as a twin.
        return end_by_report(run, attempt, None, report, now)
    if view.phase is JobPhase.RUNNING and (again or attempt.state is not AttemptState.RUNNING):
        data = {"job": view.job, "host": view.host, "started": view.started, "restarts": view.restarts}
        return record(run, EntryKind.STARTED, attempt.token, view.reason if again else "", data)
    if attempt.state is AttemptState.UNSURE:
        return record(run, EntryKind.QUEUED, attempt.token, "found by its token", {"job": view.job})
    is_back = attempt.state is AttemptState.RUNNING and view.phase is JobPhase.QUEUED
    if again or (is_back and attempt.jobs == 1):  # between the jobs of a chain, the next one waits
        return record(run, EntryKind.REQUEUED, attempt.token, view.reason, {"restarts": view.restarts})
    if attempt.missed is not None:
        return record(run, EntryKind.SEEN, attempt.token)
    if not run.cancel_asked and view.phase is not JobPhase.RUNNING and _is_news(attempt, view, now):
        return record(run, EntryKind.WAITS, attempt.token, view.reason)
    if view.phase is JobPhase.HELD and not run.cancel_asked:
        return _decide_hold(run, attempt, view, patience, now)
    gone = seen.gone.get(attempt.token)
    if hold_back is not None and view.phase is JobPhase.QUEUED and attempt.started is None:
        return _withdraw(run, attempt, hold_back.reason, now) or _give_up(run, attempt, report, patience, now)
    return _watch_alive(run, attempt, view, report, gone, limits, now) or _give_up(
        run, attempt, report, patience, now
    )


def _ended_long_ago(report: Report, view: JobView, patience: Patience, now: float) -> bool:
    """Return True if the current start logged its end and was silent for `patience.missing` seconds since.

    Schedulers may miscount starts, so the log must be younger than the start as well.
    """
    if (
        not outcomes.is_final(report, view.restarts)
        or view.started is None
        or report.last_logged <= view.started
    ):
        return False
    return now - max(report.last_logged, view.started) > patience.missing


def _watch_alive(
    run: Run,
    attempt: Attempt,
    view: JobView,
    report: Report | None,
    gone: str | None,
    limits: Limits,
    now: float,
) -> Decision | None:
    """Return the decision to cancel a job that waits or runs; None if there is no reason to."""
    if _sent_recently(attempt, now):
        return None
    reason = run.cancel_asked
    if not reason and view.phase is not JobPhase.RUNNING and now - run.since > limits.total:
        reason = "limits.total passed while the job was waiting"
    data: dict[str, Any] = {}
    if not reason and gone:
        # It could deliver nothing any more. It is cancelled first, so that the next attempt has no rival.
        outcome, reason = outcomes.when_gone(run, attempt, gone)
        data = {"outcome": outcome.value, "cause": Cause.UNKNOWN.value}
    elif not reason and report is not None:
        reason, hopeless = _why_hopeless(run, attempt, report, limits)
        data = {"outcome": hopeless.value} if hopeless else {}
    if not reason:
        return None
    return Decision(DecisionKind.CANCEL_JOB, run.name, reason, attempt.token, EntryKind.CANCEL_SENT, data)


def _withdraw(run: Run, attempt: Attempt, reason: str, now: float) -> Decision | None:
    """Return the decision to cancel a job that has not begun, because its run is held back."""
    if _sent_recently(attempt, now):
        return None
    data = {"outcome": Outcome.CANCELLED.value}
    return Decision(DecisionKind.CANCEL_JOB, run.name, reason, attempt.token, EntryKind.CANCEL_SENT, data)


def _give_up(
    run: Run, attempt: Attempt, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    """Return the decision to fence an attempt whose job is listed long after it was cancelled; None: wait.

    A scheduler lists a job that it cannot end: one on a host that is down (`dr` in Grid Engine) until an
    administrator deletes it. If it ends later, it is booked as a twin.
    """
    since = attempt.cancel_since
    # The clock alone does not prove it: it may have been set.
    if since is None or attempt.cancels < CANCELS or now - since < patience.longest_pause:
        return None
    if report is not None and _logged_recently(report, patience, now):
        return None
    reason = "still listed %.0f s after it was cancelled" % (now - since)
    return Decision(DecisionKind.FENCE, run.name, reason, attempt.token)


def _why_hopeless(run: Run, attempt: Attempt, report: Report, limits: Limits) -> tuple[str, Outcome | None]:
    """Return why another start of the job would be useless, and the outcome; empty if it would not."""
    over = report.legs if report.logged_outcome is not None else report.earlier
    if attempt.jobs > 1 and over:
        # Each job of a chain is what an attempt is elsewhere.
        failures = count_failures(over, FailureStreak(run.failure, run.failures))
        goes_back = over[-1].go_back is not None and outcomes.of_leg(over[-1]) is Outcome.CRASHED
        if failures.stops_after(outcomes.of_leg(over[-1])) and not goes_back:
            failed = next(leg for leg in reversed(over) if outcomes.signature_of(leg) == failures.signature)
            return "the same failure twice: %s" % outcomes.detail_of(failed), outcomes.of_leg(failed)
    if not limits.start_over and not run.saved and run.best_step is None:
        resumed = any(leg.resumed is not None for leg in report.legs)
        if outcomes.saved_nothing_in_time(Outcome.OVER_TIME, report.legs) and over and not resumed:
            return nothing_saved(run.name, attempt.number), Outcome.OVER_TIME
    idle = _idle_legs(over)
    if idle >= CLUSTER_PATIENCE * limits.without_progress:
        return "the job was started %d times in a row without progress" % idle, outcomes.NO_PROGRESS
    return "", None


def _idle_legs(legs: Sequence[Report]) -> int:
    """Return how many of the last starts saved nothing that the next one could resume from."""
    idle = 0
    for leg in reversed(legs):
        if leg.changed or leg.saves:
            break
        idle += 1
    return idle


def _is_news(attempt: Attempt, view: JobView, now: float) -> bool:
    if not view.reason or view.reason == attempt.waits:
        return False
    if attempt.waits_since is None or view.phase is JobPhase.HELD:
        return True
    return abs(now - attempt.waits_since) >= WAITS_AGAIN * attempt.waits_changed


def _decide_hold(
    run: Run, attempt: Attempt, view: JobView, patience: Patience, now: float
) -> Decision | None:
    """Decide about a held job: release it, or remove it so that the policy decides what follows."""
    if view.releasable and attempt.releases < MOST_RELEASES:
        pause = min(patience.longest_pause, patience.pause * 2.0**attempt.releases)
        if attempt.released is not None and 0 <= now - attempt.released < pause:
            return None
        return Decision(DecisionKind.RELEASE, run.name, view.reason, attempt.token, EntryKind.RELEASED)
    if _sent_recently(attempt, now):
        return None
    data = {"outcome": outcomes.of_hold(view).value, "lasting": view.lasting}
    if view.cause is not None:
        data["cause"] = view.cause.value
    return Decision(
        DecisionKind.CANCEL_JOB, run.name, view.reason, attempt.token, EntryKind.CANCEL_SENT, data
    )


def _watch_missing(
    run: Run, attempt: Attempt, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    # An evicted job may be on its way back into the queue: wait.
    evicted = report is not None and outcomes.of_leg(report) is Outcome.EVICTED
    returns = evicted and attempt.cancel_sent is None
    if report is not None and outcomes.is_final(report, attempt.restarts) and not returns:
        return end_by_report(run, attempt, None, report, now)
    if attempt.missed is None or now < attempt.missed:
        return record(run, EntryKind.MISSED, attempt.token, "the scheduler does not list it")
    # A cancelled job need not be waited for: if it never began, the fence keeps it from beginning.
    if now - attempt.missed < patience.missing and attempt.cancel_sent is None:
        return None
    if report is not None and _logged_recently(report, patience, now):
        return None
    return Decision(
        DecisionKind.FENCE, run.name, "missing for %.0f s" % (now - attempt.missed), attempt.token
    )


def _watch_ended(
    run: Run, attempt: Attempt, view: JobView, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    did_nothing = outcomes.did_nothing(view)
    # A finished run is finished, even if the log of an earlier start was lost.
    finished = _finished(report) and view.exit_code == 0
    starts = 0 if did_nothing or finished else view.restarts
    if report is not None and outcomes.is_final(report, starts):
        return end_by_report(run, attempt, view, report, now)
    if did_nothing:
        return end_attempt(run, attempt, view, report, outcomes.of_useless_job(view), now)
    # A node program that exited by itself has logged its end, which may lag behind in the file system.
    on_the_way = view.exit_code is not None and report is not None
    wait = max(patience.files, patience.missing if on_the_way else 0.0)
    if wait and (attempt.missed is None or now < attempt.missed):
        return record(run, EntryKind.MISSED, attempt.token, "the end of its log has not arrived")
    if attempt.missed is not None and now - attempt.missed < wait:
        return None
    if report is not None and report.logged_outcome is not None:
        return end_by_report(run, attempt, view, report, now)
    if run.cancel_asked or attempt.cancel_sent is not None:
        return end_attempt(run, attempt, view, report, outcomes.when_cancelled(run, attempt), now)
    return end_attempt(run, attempt, view, report, outcomes.from_scheduler(view, report), now)


def _sent_recently(attempt: Attempt, now: float) -> bool:
    return attempt.cancel_sent is not None and 0 <= now - attempt.cancel_sent < CANCEL_AGAIN


def _logged_recently(report: Report, patience: Patience, now: float) -> bool:
    # The clock of a node may be ahead: a time in the near future counts as recent as well.
    return abs(now - report.last_logged) < patience.heartbeat
