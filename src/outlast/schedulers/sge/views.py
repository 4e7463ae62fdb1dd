"""From what Grid Engine tells of single jobs to one view of each attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.domain.model import Outcome
from outlast.domain.observation import JobPhase, JobView
from outlast.schedulers.job_names import batch_in
from outlast.schedulers.sge import states as words
from outlast.schedulers.sge.listing import AccountingRecord, Listed
from outlast.schedulers.unreadable_output import whole_or_none

#: Why a job waits or is in error, as far as it was looked up.
Reasons = Mapping[tuple[str, JobPhase], str]
#: Of jobs with one token, the first of these that there is counts: one in error stops those that wait for it.
_PRECEDENCE = (JobPhase.RUNNING, JobPhase.HELD, JobPhase.QUEUED)


def token_of(job: Listed | AccountingRecord, group: str) -> str:
    """Empty for a job that is not of this experiment."""
    batch = _batch_and_position(job.name, group)[0]
    return "%s-%d" % (batch, job.task) if batch else ""


def _batch_and_position(name: str, group: str) -> tuple[str, int]:
    """Later jobs of a chain have their position behind the batch in their names."""
    batch, _, position = (batch_in(name, group) or "").partition(".")
    return batch, whole_or_none(position) or 1


def alive(token: str, jobs: Sequence[Listed], reasons: Reasons, group: str) -> JobView:
    """The view of an attempt whose jobs are listed."""
    job = min(jobs, key=lambda one: (_PRECEDENCE.index(one.phase), one.number))
    phase = job.phase
    outcome, reason = None, reasons.get((job.job, phase), "")
    if phase is JobPhase.HELD:
        outcome, reason = words.error_of(reason)
    earlier = _batch_and_position(job.name, group)[1] - 1
    return JobView(
        token=token,
        job=job.job,
        phase=phase,
        host=job.host,
        started=job.at if phase is JobPhase.RUNNING else None,
        outcome=outcome,
        reason=reason or words.reason_of(job.state, phase),
        restarts=earlier + (1 if "R" in job.state else 0),
        # Started again, a job that asked for the error state would do the same again.
        releasable=phase is JobPhase.HELD and outcome is not Outcome.CRASHED,
    )


def ended(token: str, records: Sequence[AccountingRecord]) -> JobView:
    """All starts of an attempt, of which the last one says how it ended."""
    last = records[-1]
    starts = [one for one in records if one.started is not None or one.failed in words.CUT_SHORT]
    code, signal = words.code_and_signal(last)
    outcome, reason = words.ending_of(last)
    # A start that was cut short is recorded without its times; it and those before it are not told of.
    untimed = [at for at, one in enumerate(starts, 1) if one.started is None]
    told = starts[max(untimed, default=0) :]
    return JobView(
        token=token,
        job=last.job,
        phase=JobPhase.ENDED,
        host=last.host,
        started=last.started,
        ended=last.ended,
        elapsed=sum(one.elapsed for one in told) if told or not starts else None,
        since=told[0].started if told and untimed else None,
        exit_code=code,
        signal=signal,
        outcome=outcome,
        reason=reason,
        restarts=max(0, len(starts) - 1),
        memory=max((one.memory for one in records), default=0) or None,
    )


def never_started(token: str, job: str) -> JobView:
    return JobView(
        token=token,
        job=job,
        phase=JobPhase.ENDED,
        elapsed=0.0,
        outcome=Outcome.CANCELLED,
        reason="was deleted before it started",
    )
