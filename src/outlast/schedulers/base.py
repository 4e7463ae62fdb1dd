"""The interface of a scheduler adapter, and the values that controller and adapter exchange.

An adapter is small: it renders jobs, submits them, lists all jobs of an experiment in one call, cancels and
releases. It may cache what saves a query, but nothing that matters is lost with the cache, and it never
decides anything; unknown stays unknown.

Jobs are known by their **token**, which the controller made up and committed before the scheduler was
called. A token is `BATCH-INDEX`: attempts that are submitted together share BATCH, and INDEX, counted from 1,
tells them apart, so that a scheduler with array jobs can name the array by one and its tasks by the other.
A scheduler's own job id is for people and for `cancel`; it may be reused after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from outlast.domain.observation import JobPhase, JobView, Patience, Removal
from outlast.errors import OutlastError

__all__ = [
    "JobPhase",
    "JobRef",
    "JobRequest",
    "JobView",
    "Patience",
    "Removal",
    "Scheduler",
    "SchedulerUnavailable",
    "Submission",
    "SubmitStatus",
]


class SchedulerUnavailable(OutlastError):
    """The scheduler did not respond. Nothing follows from this for any job."""


@dataclass(frozen=True)
class JobRequest:
    """A job to submit: everything that a scheduler needs to know, and nothing else."""

    token: str
    #: For people, in queue listings; not unique.
    name: str
    #: Absolute path of the work order.
    order: str
    #: Absolute path of the zipapp with the node program.
    zipapp: str
    #: Absolute path of the file for stdout and stderr.
    log: str
    cpus: int
    gpus: int
    memory: int
    disk: int
    #: Wall-time limit in seconds.
    time: float
    #: Seconds before the limit at which the node program should be warned.
    grace: float
    #: Hosts (sites) this job must not run on.
    avoid: tuple[str, ...] = ()
    #: Absolute path of the attempt's own directory, which exists: for files between controller and job.
    directory: str = ""
    #: Absolute paths of files to transfer where no file system is shared; each arrives under its last name.
    inputs: tuple[str, ...] = ()
    #: The number of jobs in the chain that works on this order, each waiting for the end of the one before.
    jobs: int = 1

    @property
    def batch(self) -> str:
        """The part of the token that jobs submitted together share."""
        return self.token.rpartition("-")[0]

    @property
    def index(self) -> int:
        """The number of this job within its batch, from 1."""
        return int(self.token.rpartition("-")[2])


@dataclass(frozen=True)
class JobRef:
    """A submitted job whose state the controller needs."""

    token: str
    #: The scheduler's id for it; empty if it is not known.
    job: str
    #: When it was submitted, by the controller's clock.
    submitted: float


class SubmitStatus(Enum):
    """The result of submitting one job."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    #: It may or may not exist, now or later.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Submission:
    """The result of submitting one job, with its id or the reason why it has none."""

    status: SubmitStatus
    job: str = ""
    reason: str = ""
    #: For REJECTED: the same request may be accepted later.
    transient: bool = False


class Scheduler(ABC):
    """The interface of an adapter to one cluster, for one experiment."""

    patience: Patience
    #: Seconds that one call of the scheduler may take.
    timeout: float = 30.0
    #: Seconds between two polls of `up`, at most.
    interval: float = 15.0
    #: The most jobs in one `submit`, if the scheduler allows so many.
    batch: int = 500
    #: True if jobs see the experiment's directory. If not, all files are transferred (`outlast.exchange`).
    shares_files: bool = True
    #: True if a chain is one job, which restarts itself in place.
    chains_in_place: bool = False
    #: True if `wait` returns as soon as something happens to a job.
    wakes_on_change: bool = False
    #: The signal (without SIG) that warns a job of its limit, if that signal means nothing else.
    limit_signal: str | None = None
    #: The most jobs at once, and the most submitted per minute; None: no limit.
    most_jobs: int | None = None
    submit_rate: int | None = None
    #: Set by the controller; adapters call it before each of the many calls that one submission may need.
    #: It raises if another controller is in charge by now: then nothing more may be submitted.
    heartbeat: Callable[[], None] = staticmethod(lambda: None)

    def largest_batch(self) -> int:
        """Return the most jobs in one `submit`, which is also the highest index in a token."""
        return self.batch

    @abstractmethod
    def render(self, requests: Sequence[JobRequest]) -> str:
        """Return exactly what `submit` would send, for `submit --dry-run`."""

    @abstractmethod
    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        """Submit jobs and return one result per token. Never raises for an error of the scheduler."""

    @abstractmethod
    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        """Return all jobs of this experiment that the scheduler lists, by token, in one call.

        Those `expected` that are no longer listed are looked up in its accounting. Several jobs with one
        token (see `JobRequest.jobs`) share one view: RUNNING if one runs, else QUEUED if one waits, else the
        end of the last one. Raises SchedulerUnavailable.
        """

    @abstractmethod
    def cancel(self, views: Sequence[JobView]) -> None:
        """Cancel these jobs, all that have the view's token.

        Raises SchedulerUnavailable; a job already gone is no error.
        """

    def release(self, views: Sequence[JobView]) -> None:
        """Release these held jobs. Raises SchedulerUnavailable; a job no longer held is no error."""
        raise NotImplementedError("no job is ever HELD here")

    def pop_notes(self) -> Sequence[str]:
        """Return notes about unreadable output of the scheduler since the last call; each program once."""
        return ()

    def forget(self, tokens: Sequence[str]) -> None:
        """Drop what is kept about these jobs, whose ends are in the journal. Best effort."""
        return

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, or earlier if something may have changed."""
        import time

        time.sleep(seconds)

    def hosts(self) -> Sequence[str]:
        """Return the names of hosts that a job could run on; empty if the scheduler does not know them."""
        return ()
