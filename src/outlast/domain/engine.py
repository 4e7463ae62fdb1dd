"""Pure decisions: what is known, what was seen and the time go in; what to do next, and why, comes out.

No clock, no file, no randomness. The controller, the simulator and the property tests call the same
functions. `decide` gives the next decision for one run; it is asked again until it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.domain import attempt_end
from outlast.domain.decision import Decision, DecisionKind, record
from outlast.domain.model import Attempt, AttemptState, EntryKind, Limits, Outcome, Run, RunState
from outlast.domain.observation import JobPhase, JobView, Patience, Report, Seen
from outlast.domain.policy import CLUSTER_PATIENCE, Action, judge
from outlast.node.failure_streak import FailureStreak
from outlast.node.protocol import EXIT_BAD_ORDER, EXIT_NOT_CLAIMED, EXIT_NOT_PREPARED

#: How long a run avoids a host where it met trouble of the cluster's.
SOUR_FOR = 2 * 3600.0
#: A cancellation that shows no effect is sent again after this long.
CANCEL_AGAIN = 60.0
#: A held job is let go on at most this often.
MOST_RELEASES = 3
#: Why a job waits may change with every look: the n-th is noted n times these seconds after the last.
WAITS_AGAIN = 60.0


def decide(
    run: Run, attempt: Attempt | None, seen: Seen, limits: Limits, patience: Patience, now: float
) -> Decision | None:
    """The next thing to do about `run`, whose current attempt is `attempt`; None: wait."""
    if run.state.over:
        return None
    if run.state is RunState.ACCEPTED:
        return Decision(DecisionKind.PUBLISH, run.name, token=run.accepted)
    if attempt is not None:
        return _watch(run, attempt, seen, limits, patience, now)
    verdict = judge(run, limits, patience, now)
    if verdict.action is Action.ACCEPT:
        assert run.last is not None
        return record(run, EntryKind.ACCEPTED, run.last.token, verdict.reason)
    if run.cancel_asked:
        return record(run, EntryKind.CANCELLED, None, run.cancel_asked)
    if verdict.action is Action.FAIL:
        return record(run, EntryKind.FAILED, None, verdict.reason)
    if now < verdict.due:
        return None
    sour = [host for host, at in run.sour_hosts if 0 <= now - at < SOUR_FOR]
    return Decision(DecisionKind.START, run.name, verdict.reason, data={"avoid": sour})


#: How much of something is used, and the most that may be; None: as much as there is.
Used = tuple[int, int | None]


def admit(
    starts: Sequence[Decision], runs: Used, jobs: Used, lately: Used, each: int = 1
) -> Sequence[Decision]:
    """The starts there is room for: among the runs and the jobs that are under way, and among the jobs that
    were sent within the last minute. A start is one run and `each` jobs."""
    rooms = [
        (most - used) // size
        for (used, most), size in ((runs, 1), (jobs, each), (lately, each))
        if most is not None
    ]
    return starts[: max(0, min(rooms))] if rooms else starts


def choose_avoided(sour: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts to avoid, but never all of them: the one whose trouble is longest ago is tried again."""
    if not hosts:
        return tuple(sour)
    sour = [host for host in sour if host in hosts]
    return tuple(sour[max(0, len(sour) - (len(hosts) - 1)) :]) if len(hosts) > 1 else ()


def decide_twin(attempt: Attempt, view: JobView, now: float) -> Decision | None:
    """A job was seen although its attempt is over: it is cancelled, and its time is booked as waste."""
    given_up = attempt.outcome in (Outcome.LOST, Outcome.REJECTED)
    if not given_up and not attempt.twin and view.restarts <= attempt.restarts:
        return None  # an old listing, one that is about to be forgotten, or what is left of a chain
    if view.phase is not JobPhase.ENDED:
        if attempt.twin and _sent_lately(attempt, now):
            return None
        reason = "job %s turned up after attempt %d had been given up" % (view.job, attempt.number)
        return Decision(DecisionKind.CANCEL_JOB, attempt.run, reason, attempt.token, EntryKind.TWIN_FOUND)
    # Old listings may show the end, and even the job itself, again: only what is not booked yet counts.
    booked = float(attempt.account.get("slot") or 0.0) + attempt.twin_slot
    unbooked = max(0.0, (view.elapsed or 0.0) - booked)
    if attempt.twin or unbooked >= 0.001:
        return Decision(
            DecisionKind.RECORD, attempt.run, "", attempt.token, EntryKind.TWIN_ENDED, {"slot": unbooked}
        )
    return None


def after_fence(
    run: Run, attempt: Attempt, report: Report | None, won: bool, patience: Patience, now: float
) -> Decision | None:
    """What a fence showed: the job never ran and never will, or it ran and was not heard of since."""
    if won:
        known = attempt.job or attempt.state is AttemptState.RUNNING
        detail = (
            "the job vanished from the queue before it began" if known else "the job never reached the queue"
        )
        outcome = Outcome.LOST
        if attempt.cancel_sent is not None:
            outcome, detail = attempt_end.why_cancelled(run, attempt)
        return attempt_end.end(run, attempt, None, None, outcome, detail, now)
    finished = report is not None and report.outcome is Outcome.FINISHED
    if report is not None and (finished or attempt_end.has_last_word(report, attempt.restarts)):
        return attempt_end.by_report(run, attempt, None, report, now)
    if report is None or _heard_lately(report, patience, now):
        return None
    return attempt_end.end(
        run, attempt, None, report, Outcome.LOST, "the job vanished from the queue without a word", now
    )


def _watch(
    run: Run, attempt: Attempt, seen: Seen, limits: Limits, patience: Patience, now: float
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
        return _watch_ended(run, attempt, view, report, patience, now)
    again = view.restarts > attempt.restarts
    chained = again or attempt.jobs > 1
    if chained and view.phase is not JobPhase.RUNNING and report and report.outcome is Outcome.FINISHED:
        # The last start of the job did all there was to do; whatever else waits under its token is left over.
        return attempt_end.by_report(run, attempt, None, report, now)
    if view.phase is JobPhase.RUNNING and report and _said_long_ago(report, view, patience, now):
        # The scheduler has not noticed that the job is over. What it still lists is cancelled as a stray.
        return attempt_end.by_report(run, attempt, None, report, now)
    if view.phase is JobPhase.RUNNING and (again or attempt.state is not AttemptState.RUNNING):
        data = {"job": view.job, "host": view.host, "started": view.started, "restarts": view.restarts}
        return record(run, EntryKind.STARTED, attempt.token, view.reason if again else "", data)
    if attempt.state is AttemptState.UNSURE:
        return record(run, EntryKind.QUEUED, attempt.token, "found by its token", {"job": view.job})
    if again:
        return record(run, EntryKind.REQUEUED, attempt.token, view.reason, {"restarts": view.restarts})
    if attempt.missed is not None:
        return record(run, EntryKind.SEEN, attempt.token)
    if not run.cancel_asked and view.phase is not JobPhase.RUNNING and _is_news(attempt, view, now):
        return record(run, EntryKind.WAITS, attempt.token, view.reason)
    if view.phase is JobPhase.HELD and not run.cancel_asked:
        return _answer_hold(run, attempt, view, patience, now)
    return _watch_alive(run, attempt, view, report, limits, now)


def _said_long_ago(report: Report, view: JobView, patience: Patience, now: float) -> bool:
    """The job had its last word in this start of it, and has been silent for as long as one that cannot be
    found is sought. Schedulers may miscount starts, so the word must be younger than the start as well."""
    if (
        not attempt_end.has_last_word(report, view.restarts)
        or view.started is None
        or report.heard <= view.started
    ):
        return False
    return now - max(report.heard, view.started) > patience.missing


def _watch_alive(
    run: Run, attempt: Attempt, view: JobView, report: Report | None, limits: Limits, now: float
) -> Decision | None:
    """Reasons to end a job that waits or runs."""
    if _sent_lately(attempt, now):
        return None
    reason = run.cancel_asked
    if not reason and view.phase is not JobPhase.RUNNING and now - run.since > limits.total:
        reason = "limits.total passed while the job was waiting"
    data: dict[str, Any] = {}
    if not reason and report is not None:
        reason, outcome = _gets_nowhere(run, attempt, report, limits)
        data = {"outcome": outcome.value} if outcome else {}
    if not reason:
        return None
    return Decision(DecisionKind.CANCEL_JOB, run.name, reason, attempt.token, EntryKind.CANCEL_SENT, data)


def _gets_nowhere(run: Run, attempt: Attempt, report: Report, limits: Limits) -> tuple[str, Outcome | None]:
    """Why it is no use to let the job be started again, and what that makes of the attempt."""
    over = report.legs if report.outcome is not None else report.earlier
    if attempt.jobs > 1 and over:
        # Each job of a chain is what an attempt is elsewhere.
        failures = attempt_end.failures_in(over, FailureStreak(run.failure, run.failures))
        if failures.hopeless:
            failed = next(leg for leg in reversed(over) if leg.signature == failures.signature)
            return "the same failure twice: %s" % failed.detail, failed.outcome
    idle = _idle_legs(over)
    if idle >= CLUSTER_PATIENCE * limits.without_progress:
        return "the job was started %d times in a row without getting on" % idle, Outcome.EVICTED
    return "", None


def _idle_legs(legs: Sequence[Report]) -> int:
    """How many of the last starts brought nothing that the next one could go on from."""
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


def _answer_hold(
    run: Run, attempt: Attempt, view: JobView, patience: Patience, now: float
) -> Decision | None:
    """A held job waits for somebody: it is let go on, or removed so that policy can decide what follows."""
    if view.releasable and attempt.releases < MOST_RELEASES:
        pause = min(patience.longest_pause, patience.pause * 2.0**attempt.releases)
        if attempt.released is not None and 0 <= now - attempt.released < pause:
            return None
        return Decision(DecisionKind.RELEASE, run.name, view.reason, attempt.token, EntryKind.RELEASED)
    if _sent_lately(attempt, now):
        return None
    outcome = view.outcome or Outcome.NODE_TROUBLE
    data = {"outcome": outcome.value, "lasting": view.lasting}
    if view.cause is not None:
        data["cause"] = view.cause.value
    return Decision(
        DecisionKind.CANCEL_JOB, run.name, view.reason, attempt.token, EntryKind.CANCEL_SENT, data
    )


def _watch_missing(
    run: Run, attempt: Attempt, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    # What was evicted may be on its way back into the queue: only time tells.
    returns = attempt.cancel_sent is None and report is not None and report.outcome is Outcome.EVICTED
    if report is not None and attempt_end.has_last_word(report, attempt.restarts) and not returns:
        return attempt_end.by_report(run, attempt, None, report, now)
    if attempt.missed is None or now < attempt.missed:
        return record(run, EntryKind.MISSED, attempt.token, "the scheduler does not list it")
    # One that was to be cancelled need not be waited for: if it never began, the fence makes sure of that.
    if now - attempt.missed < patience.missing and attempt.cancel_sent is None:
        return None
    if report is not None and _heard_lately(report, patience, now):
        return None
    return Decision(
        DecisionKind.FENCE, run.name, "missing for %.0f s" % (now - attempt.missed), attempt.token
    )


def _watch_ended(
    run: Run, attempt: Attempt, view: JobView, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    if view.exit_code == EXIT_NOT_PREPARED and report is None:
        detail = (
            "what the cluster's profile does before the training (modules, before, environment, "
            "container) failed; `outlast logs` shows which line"
        )
        return attempt_end.end(run, attempt, view, report, Outcome.CRASHED, detail, now)
    did_nothing = view.exit_code in (EXIT_NOT_CLAIMED, EXIT_BAD_ORDER)
    # What finished is finished, though the words of an earlier start may have been lost.
    finished = report is not None and report.outcome is Outcome.FINISHED and view.exit_code == 0
    starts = 0 if did_nothing or finished else view.restarts
    if report is not None and attempt_end.has_last_word(report, starts):
        return attempt_end.by_report(run, attempt, view, report, now)
    if did_nothing:
        why = (
            "another holds its claim"
            if view.exit_code == EXIT_NOT_CLAIMED
            else "its work order was unreadable"
        )
        return attempt_end.end(run, attempt, view, report, Outcome.LOST, "the job did nothing: " + why, now)
    # A node program that ended by itself has had a last word, which is on the way through the file system.
    on_the_way = view.exit_code is not None and report is not None
    wait = max(patience.files, patience.missing if on_the_way else 0.0)
    if wait and (attempt.missed is None or now < attempt.missed):
        return record(run, EntryKind.MISSED, attempt.token, "its last word has not arrived")
    if attempt.missed is not None and now - attempt.missed < wait:
        return None
    if report is not None and report.outcome is not None:
        return attempt_end.by_report(run, attempt, view, report, now)
    if run.cancel_asked or attempt.cancel_sent is not None:
        outcome, detail = attempt_end.why_cancelled(run, attempt)
        return attempt_end.end(run, attempt, view, report, outcome, detail, now)
    how = view.reason or _how_it_ended(view)
    if view.outcome is Outcome.OVER_TIME:
        doing = report.spans[-1][0].value if report is not None and report.spans else "starting"
        how = "killed at the time limit, in its phase %s" % doing
    if view.outcome is not None:
        return attempt_end.end(run, attempt, view, report, view.outcome, how, now)
    killed = view.signal is not None and report is not None
    return attempt_end.end(run, attempt, view, report, Outcome.EVICTED if killed else Outcome.LOST, how, now)


def _sent_lately(attempt: Attempt, now: float) -> bool:
    return attempt.cancel_sent is not None and 0 <= now - attempt.cancel_sent < CANCEL_AGAIN


def _heard_lately(report: Report, patience: Patience, now: float) -> bool:
    # A node whose clock is ahead has been heard "later than now": that is lately, too, but not for ever.
    return abs(now - report.heard) < patience.heartbeat


def _how_it_ended(view: JobView) -> str:
    if view.signal is not None:
        return "killed without warning by signal %d" % view.signal
    code = "" if view.exit_code is None else ", with exit code %d" % view.exit_code
    return "ended without a word" + code
