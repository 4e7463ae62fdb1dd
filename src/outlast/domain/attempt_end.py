"""The entry that ends an attempt: the outcome, and all that progress, policy and ledger are to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outlast.domain.decision import Decision, record
from outlast.domain.model import Attempt, Cause, EntryKind, Outcome, Phase, Run
from outlast.domain.observation import JobView, Report, Saved
from outlast.node.failure_streak import OF_THE_DATA, OF_THE_TRAINING, FailureStreak


def has_last_word(report: Report, restarts: int) -> bool:
    """A job that was started again has more to say than how an earlier start of it ended."""
    return report.outcome is not None and len(report.legs) > restarts


def by_report(run: Run, attempt: Attempt, view: JobView | None, report: Report, now: float) -> Decision:
    assert report.outcome is not None
    outcome, detail = report.outcome, report.detail
    if outcome is not Outcome.FINISHED and (run.cancel_asked or attempt.cancel_sent is not None):
        outcome, detail = why_cancelled(run, attempt)
        if outcome in OF_THE_TRAINING:  # whoever met the failure has the best words for it
            detail = next((leg.detail for leg in reversed(report.legs) if leg.outcome is outcome), detail)
    elif outcome is Outcome.CRASHED and view is not None and view.outcome is Outcome.OUT_OF_MEMORY:
        # The node program sees a process that was killed; only the scheduler knows for what.
        outcome, detail = Outcome.OUT_OF_MEMORY, view.reason or detail
    elif outcome is Outcome.EVICTED and view is not None and view.outcome is Outcome.CANCELLED:
        # The node program sees that it was asked to leave; only the scheduler knows by whom.
        detail = "%s: %s" % (view.reason, detail)
    return end(run, attempt, view, report, outcome, detail, now)


def why_cancelled(run: Run, attempt: Attempt) -> tuple[Outcome, str]:
    if run.cancel_asked or attempt.condemned is None:
        return Outcome.CANCELLED, run.cancel_asked or "cancelled"
    return attempt.condemned


def end(
    run: Run,
    attempt: Attempt,
    view: JobView | None,
    report: Report | None,
    outcome: Outcome,
    detail: str,
    now: float,
) -> Decision:
    """The entry that ends an attempt, with all that progress, policy and ledger are to know of it."""
    slot = _slot(attempt, view, report.legs if report is not None else ())
    started = attempt.started
    if view is not None and view.elapsed is not None:
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
        )
    data.update(_failure(attempt, view, report, outcome, detail))
    if outcome is Outcome.REJECTED:
        data["transient"] = False  # the scheduler has the job and says that it will not do
    elif outcome in OF_THE_DATA and data.get("signature"):
        data["transient"] = False  # the sources are there, and what they have is not what is wanted
    if attempt.cause is not None and attempt.condemned is not None and outcome is attempt.condemned[0]:
        data["cause"] = attempt.cause.value
        if attempt.cause is Cause.ACCESS_POINT and attempt.lasting:
            data["transient"] = False  # every site returns its results to the same place
    data["account"] = {"slot": slot, **_account(report)} if slot or report else {}
    if view is not None:
        told = {"memory": view.memory, "bringing": view.bringing, "in_vain": view.brought_in_vain}
        data["account"].update({key: value for key, value in told.items() if value})
    return record(run, EntryKind.ENDED, attempt.token, detail, data)


def _slot(attempt: Attempt, view: JobView | None, legs: Sequence[Report]) -> float:
    """Seconds in slots: by the scheduler, and by the node's own clock where the scheduler cannot tell."""
    logged = sum(leg.logged for leg in legs)
    if view is None or view.elapsed is None:
        return logged
    untold = sum(leg.logged for leg in legs if view.since is not None and _was_before(leg, view.since))
    # Of a chain, the scheduler may have forgotten the jobs that ended first without knowing that it has.
    return max(view.elapsed + untold, logged if attempt.jobs > 1 else 0.0)


def _was_before(leg: Report, moment: float) -> bool:
    """By its middle: the clocks of node and scheduler may differ by a little."""
    return leg.claimed is not None and leg.claimed + 0.5 * leg.logged < moment


def _failure(
    attempt: Attempt, view: JobView | None, report: Report | None, outcome: Outcome, detail: str
) -> Mapping[str, Any]:
    """What tells a failure from others, and how often it was met in this attempt."""
    if outcome is Outcome.CANCELLED:
        return {}
    if attempt.lasting and attempt.condemned is not None and outcome is attempt.condemned[0]:
        return {"signature": attempt.lasting}
    if report is None:
        if outcome not in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED):
            return {}
        # No job of a chain got as far as to claim anything: the same has happened to all.
        times = view.restarts + 1 if view is not None and attempt.jobs > 1 else 1
        return {"signature": detail, "failures": times}
    met = failures_in(report.legs)
    if outcome in OF_THE_TRAINING and met.signature:
        return {"signature": met.signature, "failures": met.times}
    if outcome in OF_THE_DATA and report.outcome is not outcome:
        return {}  # the scheduler's word, whose troubles pass
    unsigned = outcome.value if outcome in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED) else None
    return {"signature": report.signature or unsigned}


def failures_in(legs: Iterable[Report], before: FailureStreak = FailureStreak()) -> FailureStreak:  # noqa: B008 - frozen
    """The same failures in a row, leg by leg, after those `before` the first one."""
    for leg in legs:
        progressed = bool(leg.changed or leg.saves)
        before = before.after(leg.outcome, leg.signature, progressed=progressed, signal=leg.signal)
    return before


def _account(report: Report | None) -> Mapping[str, Any]:
    if report is None:
        return {}
    account = {
        "spans": [[phase.value, round(seconds, 3)] for phase, seconds in report.spans],
        "saves": [[round(save.offset, 3), save.step] for save in report.saves],
        "saving": round(report.saving, 3),
        "saved": _saved(report.saved) if report.saved is not None else None,
        "loaded": report.loaded,
        "resumed": report.resumed,
        "code": report.code,
        "signal": report.signal,
        "tail": list(report.tail),
        "notes": list(report.notes),
        "data": list(report.data),
        "earlier": [_leg(leg) for leg in report.earlier],
    }
    return {key: value for key, value in account.items() if value not in (None, [], 0.0)}


def _saved(saved: Saved) -> Mapping[str, Any]:
    sums = {"times": saved.times, "seconds": round(saved.seconds, 3), "slowest": round(saved.slowest, 3)}
    return {**sums, "why": saved.why} if saved.why else sums


def _leg(leg: Report) -> Mapping[str, Any]:
    """What the ledger and `explain` are to know of one of the job's earlier starts."""
    outcome = leg.outcome.value if leg.outcome is not None else None
    told = {"host": leg.host, "outcome": outcome, **_account(leg)}
    return {key: value for key, value in told.items() if value and key not in ("tail", "earlier")}
