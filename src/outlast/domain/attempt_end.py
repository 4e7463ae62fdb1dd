"""The journal entry that ends an attempt: its outcome, failure, progress and account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outlast.domain import outcomes
from outlast.domain.accounts import AttemptAccount, LegAccount
from outlast.domain.decision import Decision, record
from outlast.domain.model import Attempt, Cause, EntryKind, Outcome, Phase, Removal, Run
from outlast.domain.observation import JobView, Report
from outlast.domain.outcomes import Conclusion
from outlast.node.failure_streak import DATA_FAILURES, TRAINING_FAILURES, FailureStreak


def end_by_report(run: Run, attempt: Attempt, view: JobView | None, report: Report, now: float) -> Decision:
    """Return the entry that ends an attempt as its node program logged it."""
    return end_attempt(run, attempt, view, report, outcomes.from_report(run, attempt, view, report), now)


def end_attempt(
    run: Run,
    attempt: Attempt,
    view: JobView | None,
    report: Report | None,
    conclusion: Conclusion,
    now: float,
    output: Sequence[str] = (),
) -> Decision:
    """Return the entry that ends an attempt, with the facts that fold, policy and ledger need.

    `output` is the end of what a job printed that has no report.
    """
    outcome, detail = conclusion
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
            changed=report.progressed,
            computed=sum(any(phase is Phase.COMPUTE for phase, _ in leg.spans) for leg in report.legs),
        )
        if report.go_back is not None and outcome is Outcome.CRASHED:
            data.update(go_back=report.go_back, unsure=report.unsure)
    data.update(_failure(attempt, view, report, outcome, detail))
    if report is not None and outcomes.is_blocked(report):
        data["blocked"] = True
    if report is not None and outcomes.saved_nothing_in_time(outcome, report.legs):
        data["unsaved"] = True
        if any(leg.started_over for leg in report.legs):
            data["started_over"] = True
    if outcomes.lacked_memory(outcome, view, report):
        data["lacked_memory"] = True
    if outcomes.is_lasting(outcome, data.get("signature"), report):
        data["transient"] = False
    if attempt.cause is not None and attempt.condemned is not None and outcome is attempt.condemned[0]:
        data["cause"] = attempt.cause.value
        if attempt.cause is Cause.ACCESS_POINT and attempt.lasting:
            data["transient"] = False  # every site returns its results to the same place
    if view is not None and view.removed is not Removal.NO:
        # After a cancellation of our own it does not matter who else removed the job.
        ours = view.removed is Removal.OTHER and (run.cancel_asked or attempt.cancel_sent is not None)
        data["removed"] = Removal.YES.value if ours else view.removed.value
    data["account"] = _account(attempt, view, report, output, now).to_dict()
    return record(run, EntryKind.ENDED, attempt.token, detail, data)


def rejection(reason: str, transient: bool, blocked: bool = False) -> Mapping[str, Any]:
    """Return the data of the entry for an attempt whose job the scheduler did not accept.

    `blocked`: it was not submitted, because its files could not be written.
    """
    data = {"outcome": Outcome.REJECTED.value, "detail": reason, "transient": transient}
    return {**data, "blocked": True, "cause": Cause.ACCESS_POINT.value} if blocked else data


def _slot(attempt: Attempt, view: JobView | None, legs: Sequence[Report]) -> float:
    """Return the seconds in slots: by the scheduler, and by the node's clock for starts it forgot."""
    logged = sum(leg.logged for leg in legs)
    if view is None or view.elapsed is None:
        return logged
    unlisted = sum(leg.logged for leg in legs if view.since is not None and _was_before(leg, view.since))
    # The scheduler may have forgotten the first jobs of a chain without showing it.
    return max(view.elapsed + unlisted, logged if attempt.jobs > 1 else 0.0)


def _was_before(leg: Report, moment: float) -> bool:
    """Return True if the middle of the leg was before `moment`: the clocks may differ a little."""
    return leg.claimed is not None and leg.claimed + 0.5 * leg.logged < moment


def _failure(
    attempt: Attempt, view: JobView | None, report: Report | None, outcome: Outcome, detail: str
) -> Mapping[str, Any]:
    """Return the failure's signature, and how often this attempt met it."""
    if outcome is Outcome.CANCELLED:
        return {}
    if attempt.lasting and attempt.condemned is not None and outcome is attempt.condemned[0]:
        return {"signature": attempt.lasting}
    if report is None:
        if outcome not in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED):
            return {}
        # No job of a chain got as far as a claim: all of them met the same failure.
        times = view.restarts + 1 if view is not None and attempt.jobs > 1 else 1
        return {"signature": detail, "failures": times}
    streak = count_failures(report.legs)
    if outcome in TRAINING_FAILURES and streak.signature:
        return {"signature": streak.signature, "failures": streak.times}
    if outcome in DATA_FAILURES and outcomes.of_leg(report) is not outcome:
        return {}  # only the scheduler reports it, and its errors are transient
    unsigned = outcome.value if outcome in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED) else None
    return {"signature": outcomes.signature_of(report) or unsigned}


def count_failures(legs: Iterable[Report], before: FailureStreak = FailureStreak()) -> FailureStreak:  # noqa: B008 - frozen
    """Return the streak of equal failures after these legs, which follow `before`."""
    for leg in legs:
        before = before.after(
            outcomes.of_leg(leg),
            outcomes.signature_of(leg),
            progressed=bool(leg.changed or leg.saves),
            signal=leg.signal,
        )
    return before


def _account(
    attempt: Attempt, view: JobView | None, report: Report | None, output: Sequence[str], now: float
) -> AttemptAccount:
    slot = _slot(attempt, view, report.legs if report is not None else ())
    facts: dict[str, Any] = {"slot": slot if slot or report else None, "tail": tuple(output)}
    facts["queue"] = _queue_time(attempt, view, now)
    if view is not None:
        facts.update(memory=view.memory, bringing=view.bringing, in_vain=view.brought_in_vain)
    if report is not None:
        earlier = tuple(
            LegAccount(host=leg.host, outcome=outcomes.of_leg(leg), **_logged(leg)) for leg in report.earlier
        )
        facts.update(_logged(report), tail=report.tail, earlier=earlier)
    return AttemptAccount(**facts)


def _queue_time(attempt: Attempt, view: JobView | None, now: float) -> float:
    """Return the seconds in which the job held no slot, as far as its times are known."""
    if attempt.queued is None:
        return 0.0
    if view is not None and view.ended is not None and view.elapsed is not None and view.since is None:
        return max(0.0, view.ended - attempt.queued - view.elapsed)
    if attempt.started is not None:
        return max(0.0, attempt.started - attempt.queued)
    if view is not None and view.started is not None:
        return max(0.0, view.started - attempt.queued)
    until = now if attempt.missed is None else attempt.missed
    return max(0.0, until - attempt.queued)


def _logged(leg: Report) -> dict[str, Any]:
    return {
        "spans": leg.spans,
        "saves": leg.saves,
        "saved": leg.saved,
        "saving": leg.saving,
        "cpu": leg.cpu,
        "resident": leg.resident,
        "gpu": leg.gpu,
        "loaded": leg.loaded,
        "resumed": leg.resumed,
        "code": leg.code,
        "signal": leg.signal,
        "notes": leg.notes,
        "data": leg.data,
    }
