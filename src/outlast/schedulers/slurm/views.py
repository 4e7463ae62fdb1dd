"""How several rows about one job, of squeue and of sacct, become one view of an attempt.

squeue knows a job's present start, sacct the earlier ones too. Where both know a start, squeue is right: it
is never behind, and it keeps the exit code of a cancelled job, which sacct does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from outlast.schedulers.base import JobPhase, JobView, Sought
from outlast.schedulers.slurm.listing import Row
from outlast.schedulers.slurm.states import outcome_of, sentence


def give_number(rows: Sequence[Row], sought: Sequence[Sought]) -> list[Row]:
    """Rows whose task's number is lost stand for the tasks of their array that no other row tells of."""
    told = {row.job for row in rows}
    found = [row for row in rows if row.index]
    for lost in (row for row in rows if not row.index):
        for one in sought:
            batch, _, index = one.token.rpartition("-")
            job = "%d_%s" % (lost.array, index)
            if batch == lost.batch and job in one.job.split(",") and job not in told:
                found.append(replace(lost, index=int(index)))
    return found


def views_of(listed: Iterable[Row], accounted: Iterable[Row]) -> dict[str, JobView]:
    """One view for each token that squeue lists, or that ended according to sacct.

    sacct calls a job that Slurm has lost in a crash RUNNING for ever, so that alone nothing is running by it.
    """
    by_job: dict[tuple[str, int], tuple[list[Row], list[Row]]] = {}
    for row in listed:
        by_job.setdefault((row.token, row.array), ([], []))[0].append(row)
    for row in accounted:
        if row.over:
            by_job.setdefault((row.token, row.array), ([], []))[1].append(row)
    starts = {job: _starts(*rows) for job, rows in by_job.items()}
    return {
        token: _view(token, [starts[job] for job in jobs])
        for token, jobs in groupby(sorted(starts), key=lambda job: job[0])
    }


def _starts(listed: Sequence[Row], accounted: Sequence[Row]) -> list[Row]:
    """All that is known of one job, the present start last."""
    past = sorted(accounted, key=lambda row: row.ended or 0.0)
    if not listed:
        return past
    present = listed[-1]
    same = [row for row in past if row.started == present.started]
    earlier = [row for row in past if row.started is not None and row not in same]
    memory = max((row.memory for row in same if row.memory is not None), default=None)
    return [*earlier, replace(present, memory=memory)]


def _view(token: str, jobs: Sequence[Sequence[Row]]) -> JobView:
    """`jobs` are those with this token, oldest first; of each the starts, oldest first."""
    everything = [row for starts in jobs for row in starts]
    teller = _teller([starts[-1] for starts in jobs])
    began = [row for row in everything if row.started is not None]
    ended = teller.phase is JobPhase.ENDED
    count = sum(_times_started(starts) for starts in jobs)
    last = max(began, key=lambda row: row.started or 0.0, default=None)
    elapsed, since = _time_in_slots(jobs, ended)
    return JobView(
        token=token,
        job=",".join(starts[-1].job for starts in jobs),
        phase=teller.phase,
        host=last.host if last else "",
        started=last.started if last else None,
        ended=teller.ended if ended else None,
        elapsed=elapsed,
        since=since,
        exit_code=teller.exit_code if ended else None,
        signal=teller.signal if ended else None,
        outcome=outcome_of(teller.state, teller.reason)
        if teller.phase in (JobPhase.ENDED, JobPhase.HELD)
        else None,
        reason=sentence(teller.state, teller.reason),
        restarts=max(0, count - 1),
        releasable=teller.phase is JobPhase.HELD,
        memory=max((row.memory for row in everything if row.memory is not None), default=None),
    )


def _time_in_slots(jobs: Sequence[Sequence[Row]], ended: bool) -> tuple[float | None, float | None]:
    """Seconds, and since when if not all starts are known: without accounting, each job's last one is."""
    told: list[Row] = []
    for starts in reversed(jobs):
        began = [row for row in starts if row.started is not None]
        told += began
        if _times_started(starts) > len(began):
            # What came before the one that is not known can be left to the node's own clock as well.
            return (sum(row.elapsed for row in told), _first(told)) if told else (None, None)
    return (sum(row.elapsed for row in told) if told else (0.0 if ended else None)), None


def _first(rows: Sequence[Row]) -> float:
    return min(row.started for row in rows if row.started is not None)


def _teller(rows: Sequence[Row]) -> Row:
    """The row that tells how things stand with a chain of jobs."""
    for phase in (JobPhase.RUNNING, JobPhase.HELD, JobPhase.QUEUED):
        for row in rows:
            if row.phase is phase:
                return row
    # Jobs that were cancelled before they began say nothing about the one that was the last to run.
    return max(rows, key=lambda row: (row.started is not None, row.ended or 0.0))


def _times_started(starts: Sequence[Row]) -> int:
    present = starts[-1]
    known = sum(row.started is not None for row in starts)
    return max(known, present.before + (present.started is not None))
