"""Parsers for the output of squeue, sacct and sinfo.

A line that does not show which job it is about is skipped; any other unreadable field is left empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outlast.schedulers.base import JobPhase
from outlast.schedulers.job_names import parse_batch
from outlast.schedulers.slurm.states import phase_of
from outlast.schedulers.unreadable_output import (
    ReportUnreadable,
    ignore_unreadable,
    number_or_none,
    parse_number,
    parse_task_range,
)

#: `field:|` prints a field in its full length and a bar. The name comes last: it may contain anything.
SQUEUE_FORMAT = ",".join(
    field + ":|"
    for field in (
        *("ArrayJobID", "ArrayTaskID", "State", "exit_code", "restartcnt", "BatchHost"),
        *("StartTime", "EndTime", "TimeUsed", "Reason", "Name"),
    )
)
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Start,End,ElapsedRaw,MaxRSS,JobName"
SINFO_FORMAT = "%N|%P|%T"
_SETTING = re.compile(r"^(\w+)\s*= *(.*?)\s*$")
_MAX_ARRAY_TASKS = re.compile(r"\bmax_array_tasks=(\d{1,9})\b")

#: What squeue prints in place of a missing task number or host.
_NO_TASK = ("N/A", "(null)", "")
_NO_HOST = ("", "n/a", "(null)", "None assigned")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HIGHEST_SIGNAL = 64
#: Slurm prints -1 and -2 as numbers of 32 bits where it knows no user.
_HIGHEST_UID = 2**32 - 3
#: Prefixes of the states of nodes that start no jobs.
_UNUSABLE = ("down", "drain", "fail", "error", "unknown", "inval", "maint", "future", "reboot", "perfctrs")


@dataclass(frozen=True)
class SlurmLimits:
    """The limits of a cluster on submissions, as far as they are known."""

    #: The index of an array's task must be below this; 0 or 1: no arrays.
    array_size: int | None = None
    #: The most tasks of one array.
    array_tasks: int | None = None
    #: The most jobs of all users at once; each task is one.
    jobs: int | None = None

    @property
    def largest_array(self) -> int | None:
        """The most tasks of an array that is counted from 1; None if that is not known."""
        size = self.array_size - 1 if self.array_size is not None else None
        known = [limit for limit in (size, self.array_tasks, self.jobs) if limit is not None]
        return max(0, min(known)) if known else None


def parse_limits(text: str) -> SlurmLimits:
    """Parse the output of `scontrol show config`."""
    found = [match for match in map(_SETTING.match, text.splitlines()) if match]
    settings = {match.group(1): match.group(2) for match in found}
    tasks = _MAX_ARRAY_TASKS.search(settings.get("SchedulerParameters", ""))
    return SlurmLimits(
        array_size=number_or_none(settings.get("MaxArraySize", "")),
        array_tasks=int(tasks.group(1)) if tasks else None,
        jobs=number_or_none(settings.get("MaxJobCount", "")),
    )


@dataclass(frozen=True)
class Row:
    """A start of a job, or the wait for a start."""

    batch: str
    array: int
    #: 0: not known. Slurm forgets the number of the last task of an array that is cancelled while it waits.
    index: int
    state: str
    reason: str = ""
    host: str = ""
    started: float | None = None
    ended: float | None = None
    elapsed: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    #: The number of starts before this one, as far as the row itself shows it.
    earlier_starts: int = 0
    memory: int | None = None
    #: The uid of the user who cancelled it, if accounting shows that.
    cancelled_by: int | None = None

    @property
    def token(self) -> str:
        """The token of the attempt."""
        return "%s-%d" % (self.batch, self.index)

    @property
    def job(self) -> str:
        """Slurm's id of the task."""
        return "%d_%d" % (self.array, self.index)

    @property
    def phase(self) -> JobPhase:
        """The phase that goes with state and reason."""
        return phase_of(self.state, self.reason)

    @property
    def is_over(self) -> bool:
        """True if this start has ended; accounting calls it REQUEUED if another start followed."""
        return self.ended is not None and (self.phase is JobPhase.ENDED or self.state == "REQUEUED")


def parse_squeue(text: str, group: str, report_unreadable: ReportUnreadable = ignore_unreadable) -> list[Row]:
    """Parse the output of squeue with SQUEUE_FORMAT; only jobs of this group are returned."""
    rows = []
    for line in text.splitlines():
        try:
            row = _parse_squeue_line(line, group)
        except ValueError:
            report_unreadable(line)
            continue
        if row is not None:
            rows.append(row)
    return rows


def _parse_squeue_line(line: str, group: str) -> Row | None:
    """Parse one line; None if it is not a job of this group. Raises ValueError."""
    fields = [field.strip() for field in line.split("|", 10)]
    name = _parse_job_name(fields[-1].rstrip("|"), group)
    if name is None:
        return None
    if not line.rstrip().endswith("|"):
        raise ValueError("truncated")  # half a name would look like the name of an unknown job
    array, task, state, status, restarts, host, start, end, used, reason, _ = fields
    index = name.index if task in _NO_TASK else parse_number(task)
    row = Row(batch=name.batch, array=parse_number(array), index=index, state=state)
    if state == "FAILED" and host in _NO_HOST:
        return None  # it was rejected at its submission and never was a job
    has_started = host not in _NO_HOST and row.phase in (JobPhase.RUNNING, JobPhase.ENDED)
    has_ended = row.phase is JobPhase.ENDED
    code, signal = _parse_wait_status(status, state) if has_ended else (None, None)
    return replace(
        row,
        reason=reason,
        host=host if has_started else "",
        started=_parse_time(start) if has_started else None,
        # For a running job, squeue prints the expected end.
        ended=_parse_time(end) if has_ended else None,
        elapsed=_parse_elapsed(used) if has_started else 0.0,
        exit_code=code,
        signal=signal,
        earlier_starts=number_or_none(restarts) or 0,
    )


def parse_sacct(text: str, group: str, report_unreadable: ReportUnreadable = ignore_unreadable) -> list[Row]:
    """Parse the output of sacct with SACCT_FORMAT; only jobs of this group are returned.

    The batch step of a job is merged into its row: it has the memory, and the exit code of a cancelled job.
    """
    rows: list[Row] = []
    current: list[Row] = []
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        fields = rest.split("|", 7)
        if job.endswith(".batch") and len(fields) == 8:
            current = [_merge_batch_step(row, status=fields[1], memory=fields[6]) for row in current]
            continue
        if "." in job:
            continue
        rows += current
        try:
            current = _parse_sacct_line(job, fields, group)
        except ValueError:
            current = []
            report_unreadable(line)
    return rows + current


def _parse_sacct_line(job: str, fields: Sequence[str], group: str) -> list[Row]:
    """Return one row for each task; none if it is not a job of this group. Raises ValueError."""
    name = _parse_job_name(fields[-1], group)
    if name is None:
        return []
    state, status, host, start, end, elapsed, _, _ = fields
    state, _, by = state.partition(" by ")  # "CANCELLED by 1000"
    has_started = host not in _NO_HOST
    code, signal = _parse_code_and_signal(status, state)
    return [
        Row(
            batch=name.batch,
            array=array,
            index=index,
            state=state,
            host=host if has_started else "",
            started=_parse_time(start) if has_started else None,
            ended=_parse_time(end),
            elapsed=float(number_or_none(elapsed) or 0) if has_started else 0.0,
            exit_code=code,
            signal=signal,
            cancelled_by=_parse_uid(by),
        )
        for array, index in _parse_tasks(job, name.index)
    ]


def parse_sinfo(text: str, any_partition: bool) -> tuple[str, ...]:
    """Return the nodes that start jobs, from the output of `sinfo --Node` with SINFO_FORMAT.

    Unless `any_partition`, only nodes of the default partition, which sinfo marks with a star.
    """
    lines = [line.strip().split("|") for line in text.splitlines()]
    usable = {
        name
        for name, partition, state in (line for line in lines if len(line) == 3)
        # A star after the state: the node does not respond.
        if (any_partition or partition.endswith("*"))
        and not state.startswith(_UNUSABLE)
        and not state.endswith("*")
    }
    return tuple(sorted(usable))


@dataclass(frozen=True)
class _JobName:
    batch: str
    index: int


def _parse_job_name(name: str, group: str) -> _JobName | None:
    """Return batch and task number (0 if there is none) in a job's name; None for jobs of other groups.

    Only the name of an array with a single task ends in the task's number.
    """
    batch, _, index = (parse_batch(name, group) or "").partition(".")
    return _JobName(batch, number_or_none(index) or 0) if batch else None


def _parse_tasks(job: str, index: int) -> Iterator[tuple[int, int]]:
    """Yield array and task number for "12_3", or for "12_[1,4-6%2]": tasks that never started share one row.

    `index` is the number in the job's name, for a row without a task. Raises ValueError.
    """
    array, _, tasks = job.partition("_")
    for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", tasks.partition("%")[0]) or [(str(index), "")]:
        for number in parse_task_range(first, last or first):
            yield parse_number(array), number


def _merge_batch_step(row: Row, status: str, memory: str) -> Row:
    code, signal = row.exit_code, row.signal
    if code is None and signal is None:
        code, signal = _parse_code_and_signal(status, row.state)
    return replace(row, exit_code=code, signal=signal, memory=_parse_size(memory))


def _parse_wait_status(text: str, state: str) -> tuple[int | None, int | None]:
    """Return exit code or signal from a wait status, as squeue prints it."""
    status = number_or_none(text)
    return _known_end(status >> 8, status & 0x7F, state) if status is not None else (None, None)


def _parse_code_and_signal(text: str, state: str) -> tuple[int | None, int | None]:
    """Return exit code or signal from "CODE:SIGNAL", as sacct prints it."""
    code, _, signal = text.partition(":")
    pair = number_or_none(code), number_or_none(signal)
    if pair[0] is None or pair[1] is None:
        return None, None
    return _known_end(pair[0], pair[1], state)


def _known_end(code: int, signal: int, state: str) -> tuple[int | None, int | None]:
    """Return exit code or signal. Zero means "not known" for a job that did not end by itself."""
    if signal:
        # Numbers above the last signal are Slurm's own codes, such as 125 for lack of memory.
        return None, signal if signal <= _HIGHEST_SIGNAL else None
    return (code, None) if code or state == "COMPLETED" else (None, None)


def _parse_uid(text: str) -> int | None:
    uid = number_or_none(text)
    return uid if uid is not None and uid <= _HIGHEST_UID else None


def _parse_time(text: str) -> float | None:
    number = number_or_none(text)
    return float(number) if number is not None else None


def _parse_elapsed(text: str) -> float:
    """Return the seconds in "1-02:03:04", "02:03:04" or "03:04"; 0 if it cannot be parsed (INVALID)."""
    days, _, clock = text.rpartition("-")
    try:
        seconds = 0
        for part in clock.split(":"):
            seconds = 60 * seconds + parse_number(part)
        return float(seconds + 86400 * parse_number(days or "0"))
    except (ValueError, OverflowError):
        return 0.0


def _parse_size(text: str) -> int | None:
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGT]?)", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
