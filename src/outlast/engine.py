"""Pure decisions: what is known, what was seen and the time go in; what to do next, and why, comes out.

No clock, no file, no randomness. The controller, the simulator and the property tests call the same
functions. `decide` gives the next decision for one run; it is asked again until it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.model import Attempt, AttemptState, Kind, Limits, Outcome, Phase, Run, RunState
from outlast.node.words import EXIT_BAD_ORDER, EXIT_NOT_CLAIMED, EXIT_NOT_PREPARED
from outlast.observation import JobPhase, JobView, Patience, Report, Seen
from outlast.policy import CLUSTER_PATIENCE, Action, judge

#: How long a run avoids a host where it met trouble of the cluster's.
SOUR_FOR = 2 * 3600.0
#: A cancellation that shows no effect is sent again after this long.
CANCEL_AGAIN = 60.0
#: A held job is let go on at most this often.
MOST_RELEASES = 3
#: Why a job waits may change with every look: the n-th is noted n times these seconds after the last.
WAITS_AGAIN = 60.0


class Do(Enum):
    RECORD = "record"  # append an entry, nothing else
    START = "start"  # a new attempt
    FENCE = "fence"  # make sure that a job which cannot be found will never run
    CANCEL_JOB = "cancel job"
    RELEASE = "release"  # let a held job go on
    PUBLISH = "publish"  # put the accepted results in their place


@dataclass(frozen=True)
class Decision:
    do: Do
    run: str
    reason: str = ""
    token: str | None = None
    #: For RECORD: the entry.
    kind: Kind | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def decide(
    run: Run, attempt: Attempt | None, seen: Seen, limits: Limits, patience: Patience, now: float
) -> Decision | None:
    """The next thing to do about `run`, whose current attempt is `attempt`; None: wait."""
    if run.state.over:
        return None
    if run.state is RunState.ACCEPTED:
        return Decision(Do.PUBLISH, run.name, token=run.accepted)
    if attempt is not None:
        return _watch(run, attempt, seen, limits, patience, now)
    verdict = judge(run, limits, patience, now)
    if verdict.action is Action.ACCEPT:
        assert run.last is not None
        return _record(run, Kind.ACCEPTED, run.last.token, verdict.reason)
    if run.cancel_asked:
        return _record(run, Kind.CANCELLED, None, run.cancel_asked)
    if verdict.action is Action.FAIL:
        return _record(run, Kind.FAILED, None, verdict.reason)
    if now < verdict.due:
        return None
    sour = [host for host, at in run.sour_hosts if 0 <= now - at < SOUR_FOR]
    return Decision(Do.START, run.name, verdict.reason, data={"avoid": sour})


def admit(
    starts: Sequence[Decision],
    active: int,
    most: Sequence[int | None],
    lately: int = 0,
    rate: int | None = None,
) -> Sequence[Decision]:
    """The starts there is room for when no more than each of `most` may be under way, and when `lately` were
    submitted within the last minute and no more than `rate` may be."""
    rooms = [limit - active for limit in most if limit is not None]
    rooms += [rate - lately] if rate is not None else []
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
        return Decision(Do.CANCEL_JOB, attempt.run, reason, attempt.token, Kind.TWIN_FOUND)
    # Old listings may show the end, and even the job itself, again: only what is not booked yet counts.
    booked = float(attempt.account.get("slot") or 0.0) + attempt.twin_slot
    unbooked = max(0.0, (view.elapsed or 0.0) - booked)
    if attempt.twin or unbooked >= 0.001:
        return Decision(Do.RECORD, attempt.run, "", attempt.token, Kind.TWIN_ENDED, {"slot": unbooked})
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
            outcome, detail = _why_cancelled(run, attempt)
        return _end(run, attempt, None, None, outcome, detail, now)
    finished = report is not None and report.outcome is Outcome.FINISHED
    if report is not None and (finished or _has_last_word(report, attempt.restarts)):
        return _end_by_report(run, attempt, None, report, now)
    if report is None or _heard_lately(report, patience, now):
        return None
    return _end(
        run, attempt, None, report, Outcome.LOST, "the job vanished from the queue without a word", now
    )


def _watch(
    run: Run, attempt: Attempt, seen: Seen, limits: Limits, patience: Patience, now: float
) -> Decision | None:
    if attempt.state is AttemptState.INTENDED:
        # Only a controller that died in between leaves this behind.
        reason = "it is not known whether the job was submitted"
        return _record(run, Kind.UNSURE, attempt.token, reason)
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
        return _end_by_report(run, attempt, None, report, now)
    if view.phase is JobPhase.RUNNING and report and _said_long_ago(report, view, patience, now):
        # The scheduler has not noticed that the job is over. What it still lists is cancelled as a stray.
        return _end_by_report(run, attempt, None, report, now)
    if view.phase is JobPhase.RUNNING and (again or attempt.state is not AttemptState.RUNNING):
        data = {"job": view.job, "host": view.host, "started": view.started, "restarts": view.restarts}
        return _record(run, Kind.STARTED, attempt.token, view.reason if again else "", data)
    if attempt.state is AttemptState.UNSURE:
        return _record(run, Kind.QUEUED, attempt.token, "found by its token", {"job": view.job})
    if again:
        return _record(run, Kind.REQUEUED, attempt.token, view.reason, {"restarts": view.restarts})
    if attempt.missed is not None:
        return _record(run, Kind.SEEN, attempt.token)
    if not run.cancel_asked and view.phase is not JobPhase.RUNNING and _is_news(attempt, view, now):
        return _record(run, Kind.WAITS, attempt.token, view.reason)
    if view.phase is JobPhase.HELD and not run.cancel_asked:
        return _answer_hold(run, attempt, view, patience, now)
    return _watch_alive(run, attempt, view, report, limits, now)


def _said_long_ago(report: Report, view: JobView, patience: Patience, now: float) -> bool:
    """The job had its last word in this start of it, and has been silent for as long as one that cannot be
    found is sought. Schedulers may miscount starts, so the word must be younger than the start as well."""
    if not _has_last_word(report, view.restarts) or view.started is None or report.heard <= view.started:
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
    idle = _idle_legs(report) if report is not None else 0
    if not reason and idle >= CLUSTER_PATIENCE * limits.without_progress:
        reason = "the job was started %d times in a row without getting on" % idle
        data = {"outcome": Outcome.EVICTED.value}
    if not reason:
        return None
    return Decision(Do.CANCEL_JOB, run.name, reason, attempt.token, Kind.CANCEL_SENT, data)


def _idle_legs(report: Report) -> int:
    """How many of the last starts brought nothing that the next one could go on from."""
    idle = 0
    # The last one may still be at work.
    legs = report.legs if report.outcome is not None else report.earlier
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
        return Decision(Do.RELEASE, run.name, view.reason, attempt.token, Kind.RELEASED)
    if _sent_lately(attempt, now):
        return None
    outcome = view.outcome or Outcome.NODE_TROUBLE
    data = {"outcome": outcome.value}
    return Decision(Do.CANCEL_JOB, run.name, view.reason, attempt.token, Kind.CANCEL_SENT, data)


def _watch_missing(
    run: Run, attempt: Attempt, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    # What was evicted may be on its way back into the queue: only time tells.
    returns = attempt.cancel_sent is None and report is not None and report.outcome is Outcome.EVICTED
    if report is not None and _has_last_word(report, attempt.restarts) and not returns:
        return _end_by_report(run, attempt, None, report, now)
    if attempt.missed is None or now < attempt.missed:
        return _record(run, Kind.MISSED, attempt.token, "the scheduler does not list it")
    # One that was to be cancelled need not be waited for: if it never began, the fence makes sure of that.
    if now - attempt.missed < patience.missing and attempt.cancel_sent is None:
        return None
    if report is not None and _heard_lately(report, patience, now):
        return None
    return Decision(Do.FENCE, run.name, "missing for %.0f s" % (now - attempt.missed), attempt.token)


def _watch_ended(
    run: Run, attempt: Attempt, view: JobView, report: Report | None, patience: Patience, now: float
) -> Decision | None:
    if view.exit_code == EXIT_NOT_PREPARED and report is None:
        detail = (
            "what the cluster's profile does before the training (modules, before, environment) failed; "
            "`outlast logs` shows which line"
        )
        return _end(run, attempt, view, report, Outcome.CRASHED, detail, now)
    did_nothing = view.exit_code in (EXIT_NOT_CLAIMED, EXIT_BAD_ORDER)
    if report is not None and _has_last_word(report, 0 if did_nothing else view.restarts):
        return _end_by_report(run, attempt, view, report, now)
    if did_nothing:
        why = (
            "another holds its claim"
            if view.exit_code == EXIT_NOT_CLAIMED
            else "its work order was unreadable"
        )
        return _end(run, attempt, view, report, Outcome.LOST, "the job did nothing: " + why, now)
    # A node program that ended by itself has had a last word, which is on the way through the file system.
    on_the_way = view.exit_code is not None and report is not None
    wait = max(patience.files, patience.missing if on_the_way else 0.0)
    if wait and (attempt.missed is None or now < attempt.missed):
        return _record(run, Kind.MISSED, attempt.token, "its last word has not arrived")
    if attempt.missed is not None and now - attempt.missed < wait:
        return None
    if report is not None and report.outcome is not None:
        return _end_by_report(run, attempt, view, report, now)
    if run.cancel_asked or attempt.cancel_sent is not None:
        outcome, detail = _why_cancelled(run, attempt)
        return _end(run, attempt, view, report, outcome, detail, now)
    how = view.reason or _how_it_ended(view)
    if view.outcome is Outcome.OVER_TIME:
        doing = report.spans[-1][0].value if report is not None and report.spans else "starting"
        how = "killed at the time limit, in its phase %s" % doing
    if view.outcome is not None:
        return _end(run, attempt, view, report, view.outcome, how, now)
    killed = view.signal is not None and report is not None
    return _end(run, attempt, view, report, Outcome.EVICTED if killed else Outcome.LOST, how, now)


def _has_last_word(report: Report, restarts: int) -> bool:
    """A job that was started again has more to say than how an earlier start of it ended."""
    return report.outcome is not None and len(report.legs) > restarts


def _end_by_report(run: Run, attempt: Attempt, view: JobView | None, report: Report, now: float) -> Decision:
    assert report.outcome is not None
    outcome, detail = report.outcome, report.detail
    if outcome is not Outcome.FINISHED and (run.cancel_asked or attempt.cancel_sent is not None):
        outcome, detail = _why_cancelled(run, attempt)
    elif outcome is Outcome.CRASHED and view is not None and view.outcome is Outcome.OUT_OF_MEMORY:
        # The node program sees a process that was killed; only the scheduler knows for what.
        outcome, detail = Outcome.OUT_OF_MEMORY, view.reason or detail
    return _end(run, attempt, view, report, outcome, detail, now)


def _why_cancelled(run: Run, attempt: Attempt) -> tuple[Outcome, str]:
    if run.cancel_asked or attempt.condemned is None:
        return Outcome.CANCELLED, run.cancel_asked or "cancelled"
    return attempt.condemned


def _end(
    run: Run,
    attempt: Attempt,
    view: JobView | None,
    report: Report | None,
    outcome: Outcome,
    detail: str,
    now: float,
) -> Decision:
    """The entry that ends an attempt, with all that progress, policy and ledger are to know of it."""
    logged = sum(seconds for leg in report.legs for _, seconds in leg.spans) if report else 0.0
    slot = logged
    started = attempt.started
    if view is not None and view.elapsed is not None:
        # Of a chain, the scheduler may have forgotten the jobs that ended first.
        slot = max(view.elapsed, logged if attempt.jobs > 1 else 0.0)
        started = view.started if view.started is not None else started
    elif report is not None and started is None:
        started = report.claimed
    data: dict[str, Any] = {
        "outcome": outcome.value,
        "detail": detail,
        "started": started,
        "ended": view.ended if view is not None and view.ended is not None else now,
        "host": (view.host if view else "") or (report.host if report else "") or attempt.host,
    }
    if report is not None:
        data.update(
            step=report.step,
            changed=report.got_on,
            computed=sum(any(phase is Phase.COMPUTE for phase, _ in leg.spans) for leg in report.legs),
            signature=report.signature if outcome is not Outcome.CANCELLED else None,
        )
    if outcome in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED) and not data.get("signature"):
        data["signature"] = outcome.value if report is not None else detail
    if outcome is Outcome.REJECTED:
        data["transient"] = False  # the scheduler has the job and says that it will not do
    data["account"] = {"slot": slot, **_account(report)} if slot or report else {}
    if view is not None and view.memory is not None:
        data["account"]["memory"] = view.memory
    return _record(run, Kind.ENDED, attempt.token, detail, data)


def _account(report: Report | None) -> Mapping[str, Any]:
    if report is None:
        return {}
    account = {
        "spans": [[phase.value, round(seconds, 3)] for phase, seconds in report.spans],
        "saves": [[round(save.offset, 3), save.step] for save in report.saves],
        "saving": round(report.saving, 3),
        "loaded": report.loaded,
        "resumed": report.resumed,
        "code": report.code,
        "signal": report.signal,
        "tail": list(report.tail),
        "notes": list(report.notes),
        "earlier": [_leg(leg) for leg in report.earlier],
    }
    return {key: value for key, value in account.items() if value not in (None, [], 0.0)}


def _leg(leg: Report) -> Mapping[str, Any]:
    """What the ledger and `explain` are to know of one of the job's earlier starts."""
    outcome = leg.outcome.value if leg.outcome is not None else None
    told = {"host": leg.host, "outcome": outcome, **_account(leg)}
    return {key: value for key, value in told.items() if value and key not in ("tail", "earlier")}


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


def _record(
    run: Run, kind: Kind, token: str | None = None, reason: str = "", data: Mapping[str, Any] | None = None
) -> Decision:
    return Decision(Do.RECORD, run.name, reason, token, kind, {"reason": reason, **(data or {})})
