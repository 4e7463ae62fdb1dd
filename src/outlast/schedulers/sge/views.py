"""Merge the listed tasks, or the accounting records, of one attempt into a JobView."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.domain.model import Outcome
from outlast.domain.observation import JobPhase, JobView, Removal
from outlast.schedulers.job_names import parse_batch
from outlast.schedulers.sge.listing import AccountingRecord, ListedTask
from outlast.schedulers.sge.states import (
    CUT_SHORT,
    code_and_signal,
    describe_state,
    explain_end,
    explain_error,
)
from outlast.schedulers.unreadable_output import number_or_none

#: Why a job waits or is in the error state, as far as it was queried; by job and phase.
Reasons = Mapping[tuple[str, JobPhase], str]
#: The first of these phases decides for all jobs with one token: one in error blocks the later ones.
_PRECEDENCE = (JobPhase.RUNNING, JobPhase.HELD, JobPhase.QUEUED)


def token_of(job: ListedTask | AccountingRecord, group: str) -> str:
    """Return the token of a job; empty if it is not a job of this experiment."""
    batch = _batch_and_position(job.name, group)[0]
    return "%s-%d" % (batch, job.task) if batch else ""


def _batch_and_position(name: str, group: str) -> tuple[str, int]:
    """Return batch and position in the chain; only names of later jobs of a chain contain the position."""
    batch, _, position = (parse_batch(name, group) or "").partition(".")
    return batch, number_or_none(position) or 1


def view_of_listed(token: str, jobs: Sequence[ListedTask], reasons: Reasons, group: str) -> JobView:
    """Return the view of an attempt whose jobs qstat lists."""
    job = min(jobs, key=lambda one: (_PRECEDENCE.index(one.phase), one.number))
    phase = job.phase
    outcome, reason = None, reasons.get((job.job, phase), "")
    if phase is JobPhase.HELD:
        outcome, reason = explain_error(reason)
    earlier = _batch_and_position(job.name, group)[1] - 1
    return JobView(
        token=token,
        job=job.job,
        phase=phase,
        host=job.host,
        started=job.at if phase is JobPhase.RUNNING else None,
        outcome=outcome,
        reason=reason or describe_state(job.state),
        restarts=earlier + (1 if "R" in job.state else 0),
        # A job that requested the error state would do so again.
        releasable=phase is JobPhase.HELD and outcome is not Outcome.CRASHED,
    )


def view_of_ended(token: str, records: Sequence[AccountingRecord]) -> JobView:
    """Return the view of an ended attempt: the last record decides, and the time of all starts counts."""
    last = records[-1]
    starts = [one for one in records if one.started is not None or one.failed in CUT_SHORT]
    code, signal = code_and_signal(last)
    ending = explain_end(last)
    # The record of a start that was cut short has no times; only starts after the last such one are counted.
    untimed = [position for position, one in enumerate(starts, 1) if one.started is None]
    timed = starts[max(untimed, default=0) :]
    return JobView(
        token=token,
        job=last.job,
        phase=JobPhase.ENDED,
        host=last.host,
        started=last.started,
        ended=last.ended,
        elapsed=sum(one.elapsed for one in timed) if timed or not starts else None,
        since=timed[0].started if timed and untimed else None,
        exit_code=code,
        signal=signal,
        outcome=ending.outcome,
        removed=ending.removed,
        reason=ending.sentence,
        restarts=max(0, len(starts) - 1),
        memory=max((one.memory for one in records), default=0) or None,
    )


def view_of_deleted(token: str, job: str) -> JobView:
    """Return the view of an attempt whose jobs qdel deleted before they started."""
    return JobView(
        token=token,
        job=job,
        phase=JobPhase.ENDED,
        elapsed=0.0,
        outcome=Outcome.CANCELLED,
        removed=Removal.YES,
        reason="deleted before it started",
    )
