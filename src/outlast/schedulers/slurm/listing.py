"""What squeue, sacct and sinfo print, read into rows.

A line that does not tell which job it is about is passed over; what else cannot be read in one is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outlast.schedulers.base import JobPhase
from outlast.schedulers.job_names import batch_in
from outlast.schedulers.slurm.states import phase_of
from outlast.schedulers.unreadable_output import Odd, nothing_odd, tasks_between, whole, whole_or_none

#: `field:|` prints a field in its full length and a bar. The name comes last: it may hold anything.
SQUEUE_FORMAT = ",".join(
    field + ":|"
    for field in (
        *("ArrayJobID", "ArrayTaskID", "State", "exit_code", "restartcnt", "BatchHost"),
        *("StartTime", "EndTime", "TimeUsed", "Reason", "Name"),
    )
)
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Start,End,ElapsedRaw,MaxRSS,JobName"

#: What squeue has in place of a task's number.
_NO_TASK = ("N/A", "(null)", "")
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


def read_squeue(text: str, group: str, odd: Odd = nothing_odd) -> list[Row]:
    """The rows of this group's jobs in what squeue prints for SQUEUE_FORMAT."""
    rows = []
    for line in text.splitlines():
        try:
            row = _squeue_row(line, group)
        except ValueError:
            odd(line)
            continue
        if row is not None:
            rows.append(row)
    return rows


def _squeue_row(line: str, group: str) -> Row | None:
    """None for what is no job of this group. Raises ValueError."""
    fields = [field.strip() for field in line.split("|", 10)]
    named = _named(fields[-1].rstrip("|"), group)
    if named is None:
        return None
    if not line.rstrip().endswith("|"):
        raise ValueError("torn")  # half a name would be that of a job which nobody knows
    array, task, state, status, restarts, host, start, end, used, reason, _ = fields
    index = named.index if task in _NO_TASK else whole(task)
    row = Row(batch=named.batch, array=whole(array), index=index, state=state)
    if state == "FAILED" and host in _NO_HOST:
        return None  # it was refused when it was submitted, and never was a job
    began = host not in _NO_HOST and row.phase in (JobPhase.RUNNING, JobPhase.ENDED)
    ended = row.phase is JobPhase.ENDED
    code, signal = _from_wait_status(status, state) if ended else (None, None)
    return replace(
        row,
        reason=reason,
        host=host if began else "",
        started=_moment(start) if began else None,
        # squeue also foretells the end of a job that runs.
        ended=_moment(end) if ended else None,
        elapsed=_span(used) if began else 0.0,
        exit_code=code,
        signal=signal,
        before=whole_or_none(restarts) or 0,
    )


def read_sacct(text: str, group: str, odd: Odd = nothing_odd) -> list[Row]:
    """The same for SACCT_FORMAT. A job's batch step is worked into it: that knows memory and exit code."""
    rows: list[Row] = []
    current: list[Row] = []
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        fields = rest.split("|", 7)
        if job.endswith(".batch") and len(fields) == 8:
            current = [_with_batch_step(row, status=fields[1], memory=fields[6]) for row in current]
            continue
        if "." in job:
            continue
        rows += current
        try:
            current = _sacct_rows(job, fields, group)
        except ValueError:
            current = []
            odd(line)
    return rows + current


def _sacct_rows(job: str, fields: Sequence[str], group: str) -> list[Row]:
    """One for each task; none for what is no job of this group. Raises ValueError."""
    named = _named(fields[-1], group)
    if named is None:
        return []
    state, status, host, start, end, elapsed, _, _ = fields
    state = state.partition(" ")[0]  # "CANCELLED by 1000"
    began = host not in _NO_HOST
    code, signal = _from_pair(status, state)
    return [
        Row(
            batch=named.batch,
            array=array,
            index=index,
            state=state,
            host=host if began else "",
            started=_moment(start) if began else None,
            ended=_moment(end),
            elapsed=float(whole_or_none(elapsed) or 0) if began else 0.0,
            exit_code=code,
            signal=signal,
        )
        for array, index in _tasks(job, named.index)
    ]


def usable_nodes(text: str, any_partition: bool) -> tuple[str, ...]:
    """Nodes that start jobs, from "NODE|PARTITION|STATE" of sinfo; jobs go to the partition with the star."""
    lines = [line.strip().split("|") for line in text.splitlines()]
    usable = {
        name
        for name, partition, state in (line for line in lines if len(line) == 3)
        # A star at a state: the node does not answer.
        if (any_partition or partition.endswith("*"))
        and not state.startswith(_OUT)
        and not state.endswith("*")
    }
    return tuple(sorted(usable))


@dataclass(frozen=True)
class _Named:
    batch: str
    index: int


def _named(name: str, group: str) -> _Named | None:
    """What a name tells of a job of this group; that of an array with one task ends in the task's number."""
    batch, _, index = (batch_in(name, group) or "").partition(".")
    return _Named(batch, whole_or_none(index) or 0) if batch else None


def _tasks(job: str, index: int) -> Iterator[tuple[int, int]]:
    """The tasks in "12_3", or in "12_[1,4-6%2]": tasks that ended before they were started have one row.

    `index` is what the job's name says, for a row that tells of no task at all. Raises ValueError.
    """
    array, _, which = job.partition("_")
    for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", which.partition("%")[0]) or [(str(index), "")]:
        for number in tasks_between(first, last or first):
            yield whole(array), number


def _with_batch_step(row: Row, status: str, memory: str) -> Row:
    code, signal = row.exit_code, row.signal
    if code is None and signal is None:
        code, signal = _from_pair(status, row.state)
    return replace(row, exit_code=code, signal=signal, memory=_size(memory))


def _from_wait_status(status: str, state: str) -> tuple[int | None, int | None]:
    number = whole_or_none(status)
    return _told(number >> 8, number & 0x7F, state) if number is not None else (None, None)


def _from_pair(status: str, state: str) -> tuple[int | None, int | None]:
    code, _, signal = status.partition(":")
    pair = whole_or_none(code), whole_or_none(signal)
    return _told(pair[0], pair[1], state) if pair[0] is not None and pair[1] is not None else (None, None)


def _told(code: int, signal: int, state: str) -> tuple[int | None, int | None]:
    """Exit code or signal. Of a job that did not end by itself, zero means that Slurm does not know."""
    if signal:
        # Beyond the last signal are Slurm's own codes, such as 125 for want of memory.
        return None, signal if signal <= _HIGHEST_SIGNAL else None
    return (code, None) if code or state == "COMPLETED" else (None, None)


def _moment(text: str) -> float | None:
    number = whole_or_none(text)
    return float(number) if number is not None else None


def _span(text: str) -> float:
    """Seconds of "1-02:03:04", "02:03:04" or "03:04"; what cannot be read (INVALID) counts as nothing."""
    days, _, clock = text.rpartition("-")
    try:
        seconds = 0
        for part in clock.split(":"):
            seconds = 60 * seconds + whole(part)
        return float(seconds + 86400 * whole(days or "0"))
    except (ValueError, OverflowError):
        return 0.0


def _size(text: str) -> int | None:
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGT]?)", text)
    return int(float(found[1]) * _BYTES[found[2]]) if found else None
