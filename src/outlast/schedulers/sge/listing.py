"""Parsers for the output of qstat, qacct, qhost and qdel.

qstat and qacct run with TZ=UTC: they print times without a time zone.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from outlast.domain.observation import JobPhase
from outlast.schedulers.sge.states import phase_of
from outlast.schedulers.unreadable_output import (
    ReportUnreadable,
    ignore_unreadable,
    number_or_none,
    parse_number,
    parse_task_range,
)

#: Son of Grid Engine and older versions; Univa and Altair.
_TIME_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S")
_UNITS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
#: What qacct prints in place of a missing task number.
_NO_TASK = "undefined"
_LIMIT = re.compile(r"\b(h_rt|h_vmem)=([^,\s]+)")


class UnreadableListing(Exception):
    """The output is not XML at all."""


@dataclass(frozen=True)
class ListedTask:
    """A task that qstat lists."""

    name: str
    number: int
    task: int
    state: str
    host: str
    #: When it started, or, while it waits, when it was submitted.
    at: float | None

    @property
    def job(self) -> str:
        """Grid Engine's id of the task."""
        return "%d.%d" % (self.number, self.task)

    @property
    def phase(self) -> JobPhase:
        """The phase that goes with the state."""
        return phase_of(self.state)


@dataclass(frozen=True)
class AccountingRecord:
    """An ended start of a task, as qacct prints it."""

    name: str
    number: int
    task: int
    host: str
    started: float | None
    ended: float | None
    failed: int
    #: Grid Engine's text for `failed`.
    failed_text: str
    status: int
    memory: int
    #: The requested limits in seconds and bytes, if qacct prints them.
    time_limit: float | None = None
    memory_limit: float | None = None

    @property
    def job(self) -> str:
        """Grid Engine's id of the task."""
        return "%d.%d" % (self.number, self.task)

    @property
    def elapsed(self) -> float:
        """Seconds from start to end; 0 if they are not known."""
        if self.started is None or self.ended is None:
            return 0.0
        return max(0.0, self.ended - self.started)


@dataclass
class JobDetails:
    """The output of `qstat -j` about one job."""

    #: Why a task is in the error state, by task number.
    errors: dict[int, str] = field(default_factory=dict)
    #: Lines of `scheduling info`: why the job was not started in the last scheduling run.
    scheduling_info: list[str] = field(default_factory=list)


def parse_qstat(text: str, report_unreadable: ReportUnreadable = ignore_unreadable) -> list[ListedTask]:
    """Parse the output of `qstat -r -xml`. Raises UnreadableListing."""
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise UnreadableListing("qstat printed no XML: %s" % error) from error
    found: list[ListedTask] = []
    for job in root.iter("job_list"):
        try:
            found += _parse_job_element(job)
        except ValueError:
            report_unreadable(" ".join(job.itertext()))
    return found


def _parse_job_element(job: ElementTree.Element) -> list[ListedTask]:
    """Return the tasks of one element; none if it is not an array job. Raises ValueError."""
    tasks = job.findtext("tasks")
    if not tasks:
        return []
    name = job.findtext("full_job_name") or job.findtext("JB_name") or ""
    number = parse_number((job.findtext("JB_job_number") or "").strip())
    host = (job.findtext("queue_name") or "").partition("@")[2]
    at = parse_time(job.findtext("JAT_start_time") or job.findtext("JB_submission_time") or "")
    state = job.findtext("state") or ""
    return [ListedTask(name, number, task, state, host, at) for task in _parse_task_numbers(tasks)]


def _parse_task_numbers(text: str) -> Iterator[int]:
    """Yield the task numbers of `3`, `4-6:1` or `2,4,7-9:1`. Raises ValueError."""
    for part in filter(None, text.strip().split(",")):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        yield from parse_task_range(first, last or first, step or "1")


def parse_time(text: str) -> float | None:
    """Return the seconds since the epoch; None for a time that has not come (`-/-`)."""
    bare = text.strip().partition(".")[0]
    for form in _TIME_FORMATS:
        try:
            return float(calendar.timegm(time.strptime(bare, form)))
        except ValueError:
            continue
    return None


def parse_qacct(text: str, report_unreadable: ReportUnreadable = ignore_unreadable) -> list[AccountingRecord]:
    """Parse the output of `qacct -j`, in the order of the file: the last record of a task is its end.

    All records of a task are left out if one of them cannot be parsed: that may have been its end.
    """
    records, unreadable = [], set()
    for block in re.split(r"^=+$", text, flags=re.MULTILINE):
        pairs = (line.partition(" ") for line in block.splitlines())
        fields = {key: value.strip() for key, _, value in pairs if key}
        if fields.get("taskid", _NO_TASK) == _NO_TASK:
            continue
        try:
            records.append((_task_key(fields), _parse_record(fields)))
        except (KeyError, ValueError, IndexError):
            unreadable.add(_task_key(fields))
            report_unreadable(block)
    return [record for key, record in records if key not in unreadable]


def _task_key(fields: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(fields.get(key, "") for key in ("jobname", "jobnumber", "taskid"))


def _parse_record(fields: Mapping[str, str]) -> AccountingRecord:
    """Parse one record. Raises KeyError, ValueError or IndexError."""
    code, _, failed_text = fields.get("failed", "0").partition(":")
    limits = dict(_LIMIT.findall(fields.get("category", "")))
    return AccountingRecord(
        name=fields["jobname"],
        number=parse_number(fields["jobnumber"]),
        task=parse_number(fields["taskid"]),
        host=fields["hostname"],
        started=parse_time(fields["start_time"]),
        ended=parse_time(fields["end_time"]),
        failed=parse_number(code.strip()),
        failed_text=failed_text.strip(),
        status=parse_number(fields["exit_status"].split()[0]),
        memory=int(_parse_size(fields.get("maxvmem", "")) or 0),
        time_limit=_parse_duration(limits.get("h_rt", "")),
        memory_limit=_parse_size(limits.get("h_vmem", "")),
    )


def _parse_size(text: str) -> float | None:
    """Return the bytes of `4.707MB`, `500M` or `12`; None if it cannot be parsed."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGT]?)B?", text.strip(), flags=re.IGNORECASE)
    return float(match[1]) * _UNITS[match[2].upper()] if match else None


def _parse_duration(text: str) -> float | None:
    """Return the seconds of `3600` or `1:00:00`; None if it cannot be parsed."""
    total = 0.0
    for part in text.split(":"):
        number = number_or_none(part)
        if number is None:
            return None
        total = total * 60 + number
    return total


def parse_qstat_details(text: str) -> Mapping[int, JobDetails]:
    """Parse the output of `qstat -j ID,ID`; returns details by job number."""
    found: dict[int, JobDetails] = {}
    current, in_scheduling_info = JobDetails(), False
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "job_number":
            number = number_or_none(value.strip())
            # What follows an unreadable number is dropped.
            current = found.setdefault(number, JobDetails()) if number is not None else JobDetails()
        task = re.fullmatch(r"error reason\s+([0-9]{1,18})", key)
        if task:
            current.errors[int(task[1])] = _without_stamp(value)
        in_scheduling_info = key == "scheduling info" or (in_scheduling_info and line[:1].isspace())
        if in_scheduling_info:
            current.scheduling_info.append((value if key == "scheduling info" else line).strip())
    return found


def _without_stamp(message: str) -> str:
    """Remove the date, user and process id, and `error:`, at the beginning of an error reason."""
    return re.sub(r"^\s*\S+ \S+ \[\d+:\d+\]: (error: )?", "", message).strip()


def parse_qhost(text: str) -> list[str]:
    """Return the host names in the output of `qhost -xml`. Raises UnreadableListing."""
    try:
        names: Iterable[str | None] = [host.get("name") for host in ElementTree.fromstring(text).iter("host")]
    except (ElementTree.ParseError, ValueError) as error:
        raise UnreadableListing("qhost printed no XML: %s" % error) from error
    return [name for name in names if name and name != "global"]


def parse_qdel(text: str) -> tuple[set[int], set[str]]:
    """Return what qdel removed from the queue: numbers of whole jobs, and tasks as ID.TASK."""
    jobs = {int(number) for number in re.findall(r"has deleted job ([0-9]{1,18})\b(?!\.)", text)}
    tasks = set(re.findall(r"has deleted job-array task (\d+\.\d+)", text))
    return jobs, tasks
