"""What squeue and sacct print, and how several rows about one job become one view.

squeue knows a job's present start, sacct the earlier ones too. Where both know a start, squeue is right: it
is never behind, and it keeps the exit code of a cancelled job, which sacct does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from outlast.schedulers.base import JobPhase, JobView, Sought
from outlast.schedulers.naming import batch_in
from outlast.schedulers.slurm_words import outcome_of, phase_of, sentence

#: `field:|` prints a field in its full length and a bar. The name comes last: it may hold anything.
SQUEUE_FORMAT = ",".join(
    field + ":|"
    for field in (
        *("ArrayJobID", "ArrayTaskID", "State", "exit_code", "restartcnt", "BatchHost"),
        *("StartTime", "EndTime", "TimeUsed", "Reason", "Name"),
    )
)
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Start,End,ElapsedRaw,MaxRSS,JobName"

_NO_HOST = ("", "n/a", "(null)", "None assigned")
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HIGHEST_SIGNAL = 64
#: States of nodes that start no jobs.
_OUT = ("down", "drain", "fail", "error", "unknown", "inval", "maint", "future", "reboot", "perfctrs")


@dataclass(frozen=True)
class Row:
    """One start of one job, or its wait for one."""

    batch: str
    array: int
    #: 0: Slurm has forgotten it, as it does with the last task of an array that is cancelled while it waits.
    index: int
    state: str
    reason: str = ""
    host: str = ""
    started: float | None = None
    ended: float | None = None
    elapsed: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    #: Starts before this one, as far as the row itself knows.
    before: int = 0
    memory: int | None = None

    @property
    def token(self) -> str:
        return "%s-%d" % (self.batch, self.index)

    @property
    def job(self) -> str:
        return "%d_%d" % (self.array, self.index)

    @property
    def phase(self) -> JobPhase:
        return phase_of(self.state, self.reason)

    @property
    def over(self) -> bool:
        """This start is a thing of the past; accounting says REQUEUED of one that another followed."""
        return self.ended is not None and (self.phase is JobPhase.ENDED or self.state == "REQUEUED")


def read_squeue(text: str, group: str) -> list[Row]:
    """The rows of this group's jobs in what squeue prints for SQUEUE_FORMAT."""
    rows = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 10)]
        named = _named(fields[10].rstrip("|"), group) if len(fields) == 11 else None
        if named is None:
            continue
        array, task, state, status, restarts, host, start, end, used, reason, _ = fields
        index = int(task) if task.isdigit() else named.index
        seen = Row(batch=named.batch, array=int(array), index=index, state=state)
        if state == "FAILED" and host in _NO_HOST:
            continue  # it was refused when it was submitted, and never was a job
        began = host not in _NO_HOST and seen.phase in (JobPhase.RUNNING, JobPhase.ENDED)
        ended = seen.phase is JobPhase.ENDED
        code, signal = _from_wait_status(int(status), state) if ended else (None, None)
        rows.append(
            replace(
                seen,
                reason=reason,
                host=host if began else "",
                started=_moment(start) if began else None,
                # squeue also foretells the end of a job that runs.
                ended=_moment(end) if ended else None,
                elapsed=_span(used) if began else 0.0,
                exit_code=code,
                signal=signal,
                before=int(restarts),
            )
        )
    return rows


def read_sacct(text: str, group: str) -> list[Row]:
    """The same for SACCT_FORMAT. A job's batch step is worked into it: that knows memory and exit code."""
    rows: list[Row] = []
    current: list[int] = []
    for line in text.splitlines():
        fields = line.split("|", 8)
        if len(fields) != 9:
            continue
        job, state, status, host, start, end, elapsed, memory, name = fields
        if job.endswith(".batch"):
            for at in current:
                rows[at] = _with_batch_step(rows[at], status, memory)
            continue
        if "." in job:
            continue
        current = []
        named = _named(name, group)
        if named is None:
            continue
        state = state.split()[0]  # "CANCELLED by 1000"
        began = host not in _NO_HOST
        code, signal = _from_pair(status, state)
        for array, index in _tasks(job, named.index):
            current.append(len(rows))
            rows.append(
                Row(
                    batch=named.batch,
                    array=array,
                    index=index,
                    state=state,
                    host=host if began else "",
                    started=_moment(start) if began else None,
                    ended=_moment(end),
                    elapsed=float(elapsed or 0) if began else 0.0,
                    exit_code=code,
                    signal=signal,
                )
            )
    return rows


def usable_nodes(text: str, any_partition: bool) -> tuple[str, ...]:
    """Nodes that start jobs, from "NODE|PARTITION|STATE" of sinfo; jobs go to the partition with the star."""
    lines = [line.strip().split("|") for line in text.splitlines()]
    usable = {
        name
        for name, partition, state in lines
        # A star at a state: the node does not answer.
        if (any_partition or partition.endswith("*"))
        and not state.startswith(_OUT)
        and not state.endswith("*")
    }
    return tuple(sorted(usable))


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
    return JobView(
        token=token,
        job=",".join(starts[-1].job for starts in jobs),
        phase=teller.phase,
        host=last.host if last else "",
        started=last.started if last else None,
        ended=teller.ended if ended else None,
        elapsed=sum(row.elapsed for row in began) if began else (0.0 if ended else None),
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


@dataclass(frozen=True)
class _Named:
    batch: str
    index: int


def _named(name: str, group: str) -> _Named | None:
    """What a name tells of a job of this group; that of an array with one task ends in the task's number."""
    batch, _, index = (batch_in(name, group) or "").partition(".")
    return _Named(batch, int(index) if index.isdigit() else 0) if batch else None


def _tasks(job: str, index: int) -> Iterator[tuple[int, int]]:
    """The tasks in "12_3", or in "12_[1,4-6%2]": tasks that ended before they were started have one row.

    `index` is what the job's name says, for a row that tells of no task at all.
    """
    array, _, which = job.partition("_")
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", which.partition("%")[0]) or [(str(index), "")]:
        for number in range(int(first), int(last or first) + 1):
            yield int(array), number


def _with_batch_step(row: Row, status: str, memory: str) -> Row:
    code, signal = row.exit_code, row.signal
    if code is None and signal is None:
        code, signal = _from_pair(status, row.state)
    return replace(row, exit_code=code, signal=signal, memory=_size(memory))


def _from_wait_status(status: int, state: str) -> tuple[int | None, int | None]:
    return _told(status >> 8, status & 0x7F, state)


def _from_pair(status: str, state: str) -> tuple[int | None, int | None]:
    code, _, signal = status.partition(":")
    return _told(int(code), int(signal), state) if code.isdigit() and signal.isdigit() else (None, None)


def _told(code: int, signal: int, state: str) -> tuple[int | None, int | None]:
    """Exit code or signal. Of a job that did not end by itself, zero means that Slurm does not know."""
    if signal:
        # Beyond the last signal are Slurm's own codes, such as 125 for want of memory.
        return None, signal if signal <= _HIGHEST_SIGNAL else None
    return (code, None) if code or state == "COMPLETED" else (None, None)


def _moment(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def _span(text: str) -> float:
    """Seconds of "1-02:03:04", "02:03:04" or "03:04"; what cannot be read (INVALID) counts as nothing."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (days and not days.isdigit()):
        return 0.0
    seconds = 0.0
    for part in parts:
        seconds = 60.0 * seconds + int(part)
    return seconds + 86400.0 * int(days or 0)


def _size(text: str) -> int | None:
    found = re.fullmatch(r"([\d.]+)([KMGT]?)", text)
    return int(float(found[1]) * _BYTES[found[2]]) if found else None
