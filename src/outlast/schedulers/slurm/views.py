"""Merge the rows of squeue and sacct about one job, or one chain of jobs, into a JobView.

squeue lists the current start of a job, sacct also the earlier ones. If both list a start, squeue is right:
it is never late, and it keeps the exit code of a cancelled job, which sacct does not.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from outlast.schedulers.base import JobPhase, JobRef, JobView, Removal
from outlast.schedulers.slurm.listing import Row
from outlast.schedulers.slurm.states import (
    describe_requeue,
    describe_state,
    is_ended_by_slurm,
    outcome_of,
    removal_of,
)


def restore_task_numbers(rows: Sequence[Row], expected: Sequence[JobRef]) -> list[Row]:
    """Return the rows, with those that lost their task number given to the expected tasks without a row."""
    listed = {row.job for row in rows}
    restored = [row for row in rows if row.index]
    for lost in (row for row in rows if not row.index):
        for one in expected:
            batch, _, index = one.token.rpartition("-")
            job = "%d_%s" % (lost.array, index)
            if batch == lost.batch and job in one.job.split(",") and job not in listed:
                restored.append(replace(lost, index=int(index)))
    return restored


def build_views(
    listed: Iterable[Row], accounted: Iterable[Row], owner: int | None = None
) -> dict[str, JobView]:
    """Return one view for each token that squeue lists, or that ended according to sacct.

    `owner` is the uid of the jobs' owner; if it is None, nobody else is taken to have removed a job.

    A job that sacct alone calls RUNNING is left out: it does so for ever if Slurm lost the job in a crash.
    """
    by_job: dict[tuple[str, int], tuple[list[Row], list[Row]]] = {}
    for row in listed:
        by_job.setdefault((row.token, row.array), ([], []))[0].append(row)
    for row in accounted:
        if row.is_over:
            by_job.setdefault((row.token, row.array), ([], []))[1].append(row)
    starts = {job: _merge_starts(*rows) for job, rows in by_job.items()}
    return {
        token: _build_view(token, [starts[job] for job in jobs], owner)
        for token, jobs in groupby(sorted(starts), key=lambda job: job[0])
    }


def _merge_starts(listed: Sequence[Row], accounted: Sequence[Row]) -> list[Row]:
    """Return the known starts of one job, the current one last."""
    past = sorted(accounted, key=lambda row: row.ended or 0.0)
    if not listed:
        return past
    current = listed[-1]
    same = [row for row in past if row.started == current.started]
    earlier = [row for row in past if row.started is not None and row not in same]
    memory = max((row.memory for row in same if row.memory is not None), default=None)
    cancelled_by = next((row.cancelled_by for row in same if row.cancelled_by is not None), None)
    return [*earlier, replace(current, memory=memory, cancelled_by=cancelled_by)]


def _build_view(token: str, jobs: Sequence[Sequence[Row]], owner: int | None) -> JobView:
    """Return the view of the jobs with this token, oldest first; each is a list of starts, oldest first."""
    rows = [row for starts in jobs for row in starts]
    decisive = _decisive_row([starts[-1] for starts in jobs])
    started = [row for row in rows if row.started is not None]
    has_ended = decisive.phase is JobPhase.ENDED
    count = sum(_count_starts(starts) for starts in jobs)
    last = max(started, key=lambda row: row.started or 0.0, default=None)
    elapsed, since = _sum_elapsed(jobs, has_ended)
    return JobView(
        token=token,
        job=",".join(starts[-1].job for starts in jobs),
        phase=decisive.phase,
        host=last.host if last else "",
        started=last.started if last else None,
        ended=decisive.ended if has_ended else None,
        elapsed=elapsed,
        since=since,
        exit_code=decisive.exit_code if has_ended else None,
        signal=decisive.signal if has_ended else None,
        outcome=outcome_of(decisive.state, decisive.reason)
        if decisive.phase in (JobPhase.ENDED, JobPhase.HELD)
        else None,
        removed=_removal(decisive, owner) if has_ended else Removal.NO,
        reason=_explain_requeue(decisive, jobs)
        + (_describe_removal(decisive, owner) or describe_state(decisive.state, decisive.reason)),
        restarts=max(0, count - 1),
        releasable=decisive.phase is JobPhase.HELD,
        memory=max((row.memory for row in rows if row.memory is not None), default=None),
    )


def _removal(row: Row, owner: int | None) -> Removal:
    removed = removal_of(row.state)
    return Removal.OTHER if removed is Removal.YES and _by_another(row, owner) else removed


def _by_another(row: Row, owner: int | None) -> bool:
    if owner is None or row.cancelled_by is None or is_ended_by_slurm(row.reason):
        return False
    return row.cancelled_by != owner


def _describe_removal(row: Row, owner: int | None) -> str:
    """Return who cancelled a job, if it was another user; else an empty string."""
    if row.cancelled_by is None or not _by_another(row, owner):
        return ""
    try:
        name = "%s (uid %d)" % (pwd.getpwuid(row.cancelled_by).pw_name, row.cancelled_by)
    except KeyError:
        name = "the user with uid %d" % row.cancelled_by
    return "cancelled by %s" % name


def _explain_requeue(waiting: Row, jobs: Sequence[Sequence[Row]]) -> str:
    """Return why a waiting job is in the queue again, as the beginning of a sentence; empty if it is not."""
    if waiting.phase is not JobPhase.QUEUED or not waiting.earlier_starts:
        return ""
    starts = [row for rows in jobs for row in rows if row.job == waiting.job and row.started is not None]
    if not starts:
        return "requeued; "
    return describe_requeue(starts[-1].state, starts[-1].host) + "; "


def _sum_elapsed(jobs: Sequence[Sequence[Row]], has_ended: bool) -> tuple[float | None, float | None]:
    """Return the seconds in slots, and since when they are known if that is not from the first start.

    Without accounting, only the last start of each job is known.
    """
    known: list[Row] = []
    for starts in reversed(jobs):
        timed = [row for row in starts if row.started is not None]
        known += timed
        if _count_starts(starts) > len(timed):
            # The node's own clock covers all that was before the unknown start as well.
            return (sum(row.elapsed for row in known), _first_start(known)) if known else (None, None)
    return (sum(row.elapsed for row in known) if known else (0.0 if has_ended else None)), None


def _first_start(rows: Sequence[Row]) -> float:
    return min(row.started for row in rows if row.started is not None)


def _decisive_row(rows: Sequence[Row]) -> Row:
    """Return the row that decides the phase and the end of a chain of jobs."""
    for phase in (JobPhase.RUNNING, JobPhase.HELD, JobPhase.QUEUED):
        for row in rows:
            if row.phase is phase:
                return row
    # Jobs that were cancelled before they started say nothing about the last one that ran.
    return max(rows, key=lambda row: (row.started is not None, row.ended or 0.0))


def _count_starts(starts: Sequence[Row]) -> int:
    current = starts[-1]
    known = sum(row.started is not None for row in starts)
    return max(known, current.earlier_starts + (current.started is not None))
