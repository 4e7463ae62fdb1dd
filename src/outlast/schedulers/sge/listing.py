"""What Grid Engine's programs print, read into plain values.

`qstat` and `qacct` are run with TZ=UTC, so that their times, which name no time zone, are UTC.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from outlast.domain.observation import JobPhase
from outlast.schedulers.unreadable_output import Odd, nothing_odd, tasks_between, whole, whole_or_none

#: Son of Grid Engine and the older ones; Univa's and Altair's.
_TIME_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S")
_UNITS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
#: What qacct has in place of a task's number.
_NO_TASK = "undefined"
_LIMIT = re.compile(r"\b(h_rt|h_vmem)=([^,\s]+)")


class Unreadable(Exception):
    """This is not what the program prints."""


@dataclass(frozen=True)
class Listed:
    """One task that `qstat` lists."""

    name: str
    number: int
    task: int
    state: str
    host: str
    #: When it was started, or, while it waits, submitted.
    at: float | None

    @property
    def job(self) -> str:
        return "%d.%d" % (self.number, self.task)

    @property
    def phase(self) -> JobPhase:
        """States are strings of letters, one for each thing that is true of a task: `Eqw`, `hRwq`, `dRr`."""
        if "E" in self.state:
            return JobPhase.HELD
        return JobPhase.QUEUED if set(self.state) & set("qw") else JobPhase.RUNNING


@dataclass(frozen=True)
class AccountingRecord:
    """One start of a task that has ended, from the accounting."""

    name: str
    number: int
    task: int
    host: str
    started: float | None
    ended: float | None
    failed: int
    #: Grid Engine's words for `failed`.
    what: str
    status: int
    memory: int
    #: What it asked for, where the accounting tells: seconds and bytes.
    time_limit: float | None = None
    memory_limit: float | None = None

    @property
    def job(self) -> str:
        return "%d.%d" % (self.number, self.task)

    @property
    def elapsed(self) -> float:
        if self.started is None or self.ended is None:
            return 0.0
        return max(0.0, self.ended - self.started)


@dataclass
class Detail:
    """What `qstat -j` says of one job."""

    #: Why a task is in the error state, by task number.
    errors: dict[int, str] = field(default_factory=dict)
    #: Why it was not started when the scheduler last looked.
    waits: list[str] = field(default_factory=list)


def listing(text: str, odd: Odd = nothing_odd) -> list[Listed]:
    """From `qstat -r -xml`."""
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise Unreadable("qstat printed no XML: %s" % error) from error
    found: list[Listed] = []
    for job in root.iter("job_list"):
        try:
            found += _tasks_of(job)
        except ValueError:
            odd(" ".join(job.itertext()))
    return found


def _tasks_of(job: ElementTree.Element) -> list[Listed]:
    """None for what is no array job. Raises ValueError."""
    tasks = job.findtext("tasks")
    if not tasks:
        return []
    name = job.findtext("full_job_name") or job.findtext("JB_name") or ""
    number = whole((job.findtext("JB_job_number") or "").strip())
    host = (job.findtext("queue_name") or "").partition("@")[2]
    at = moment(job.findtext("JAT_start_time") or job.findtext("JB_submission_time") or "")
    state = job.findtext("state") or ""
    return [Listed(name, number, task, state, host, at) for task in numbers(tasks)]


def numbers(text: str) -> Iterator[int]:
    """The task numbers of `3`, `4-6:1` or `2,4,7-9:1`. Raises ValueError."""
    for part in filter(None, text.strip().split(",")):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        yield from tasks_between(first, last or first, step or "1")


def moment(text: str) -> float | None:
    """Seconds since the epoch; None for a time that has not come (`-/-`)."""
    bare = text.strip().partition(".")[0]
    for form in _TIME_FORMATS:
        try:
            return float(calendar.timegm(time.strptime(bare, form)))
        except ValueError:
            continue
    return None


def accounting(text: str, odd: Odd = nothing_odd) -> list[AccountingRecord]:
    """From `qacct -j`, in the order in which it was written: the last record of a task is its end.

    Of a task with a record that cannot be read nothing is told: that may have been its end.
    """
    records, unread = [], set()
    for block in re.split(r"^=+$", text, flags=re.MULTILINE):
        pairs = (line.partition(" ") for line in block.splitlines())
        fields = {key: value.strip() for key, _, value in pairs if key}
        if fields.get("taskid", _NO_TASK) == _NO_TASK:
            continue
        try:
            records.append((_identity(fields), _record(fields)))
        except (KeyError, ValueError, IndexError):
            unread.add(_identity(fields))
            odd(block)
    return [record for identity, record in records if identity not in unread]


def _identity(fields: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(fields.get(key, "") for key in ("jobname", "jobnumber", "taskid"))


def _record(fields: Mapping[str, str]) -> AccountingRecord:
    """Raises KeyError, ValueError, IndexError."""
    code, _, what = fields.get("failed", "0").partition(":")
    limits = dict(_LIMIT.findall(fields.get("category", "")))
    return AccountingRecord(
        name=fields["jobname"],
        number=whole(fields["jobnumber"]),
        task=whole(fields["taskid"]),
        host=fields["hostname"],
        started=moment(fields["start_time"]),
        ended=moment(fields["end_time"]),
        failed=whole(code.strip()),
        what=what.strip(),
        status=whole(fields["exit_status"].split()[0]),
        memory=int(amount(fields.get("maxvmem", "")) or 0),
        time_limit=_seconds(limits.get("h_rt", "")),
        memory_limit=amount(limits.get("h_vmem", "")),
    )


def amount(text: str) -> float | None:
    """Bytes of `4.707MB`, `500M` or `12`."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGT]?)B?", text.strip(), flags=re.IGNORECASE)
    return float(match[1]) * _UNITS[match[2].upper()] if match else None


def _seconds(text: str) -> float | None:
    """Of `3600` or `1:00:00`."""
    total = 0.0
    for part in text.split(":"):
        number = whole_or_none(part)
        if number is None:
            return None
        total = total * 60 + number
    return total


def details(text: str) -> Mapping[int, Detail]:
    """From `qstat -j ID,ID`, by job number."""
    found: dict[int, Detail] = {}
    current, in_waits = Detail(), False
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "job_number":
            number = whole_or_none(value.strip())
            # What follows a number that cannot be read is about nobody.
            current = found.setdefault(number, Detail()) if number is not None else Detail()
        task = re.fullmatch(r"error reason\s+([0-9]{1,18})", key)
        if task:
            current.errors[int(task[1])] = _without_stamp(value)
        in_waits = key == "scheduling info" or (in_waits and line[:1].isspace())
        if in_waits:
            current.waits.append((value if key == "scheduling info" else line).strip())
    return found


def _without_stamp(message: str) -> str:
    """An error reason begins with a date, a user and a process id, and often with `error:`."""
    return re.sub(r"^\s*\S+ \S+ \[\d+:\d+\]: (error: )?", "", message).strip()


def hosts(text: str) -> list[str]:
    """From `qhost -xml`."""
    try:
        names: Iterable[str | None] = [host.get("name") for host in ElementTree.fromstring(text).iter("host")]
    except (ElementTree.ParseError, ValueError) as error:
        raise Unreadable("qhost printed no XML: %s" % error) from error
    return [name for name in names if name and name != "global"]


def deleted(text: str) -> tuple[set[int], set[str]]:
    """What `qdel` says it took out of the queue: numbers of whole jobs, and tasks as ID.TASK."""
    jobs = {int(number) for number in re.findall(r"has deleted job ([0-9]{1,18})\b(?!\.)", text)}
    tasks = set(re.findall(r"has deleted job-array task (\d+\.\d+)", text))
    return jobs, tasks
