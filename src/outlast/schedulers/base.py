"""What the controller asks of a scheduler.

An adapter is small: it renders jobs, sends them, tells about all jobs of an experiment in one call, cancels
and releases. It may remember what saves a question, but nothing that matters is lost with it, and it never
decides anything; unknown stays unknown.

Jobs are known by their **token**, which the controller made up and committed before the scheduler was
called. A token is `BATCH-INDEX`: the attempts that are sent together have BATCH in common and INDEX, counted
from 1, tells them apart, so that a scheduler with array jobs can name the array by one and its tasks by the
other. A scheduler's own job id is for people and for `cancel`; it may be reused after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from outlast.domain.observation import JobPhase, JobView, Patience
from outlast.errors import OutlastError

__all__ = [
    "JobPhase",
    "JobRequest",
    "JobView",
    "Patience",
    "Scheduler",
    "SchedulerUnavailable",
    "Sought",
    "Submission",
    "SubmitAnswer",
]


class SchedulerUnavailable(OutlastError):
    """The scheduler did not answer. This says nothing about any job."""


@dataclass(frozen=True)
class JobRequest:
    """One job to be submitted: everything a scheduler has to know, nothing that is not its business."""

    token: str
    #: For people, in queue listings; not unique.
    name: str
    #: Absolute path of the work order the job is to carry out.
    order: str
    #: Absolute path of the zipapp with the node program.
    zipapp: str
    #: Absolute path that stdout and stderr go to.
    log: str
    cpus: int
    gpus: int
    memory: int
    disk: int
    #: Wall-time limit in seconds.
    time: float
    #: Seconds before the limit at which the node program should be told.
    grace: float
    #: Hosts (sites) this job must not run on.
    avoid: tuple[str, ...] = ()
    #: Absolute path of the attempt's own directory, which exists: what passes between controller and job.
    directory: str = ""
    #: Absolute paths of what travels along where no file system is shared; each arrives under its last name.
    inputs: tuple[str, ...] = ()
    #: How many jobs carry this order, each waiting for the end of the one before.
    jobs: int = 1

    @property
    def batch(self) -> str:
        return self.token.rpartition("-")[0]

    @property
    def index(self) -> int:
        return int(self.token.rpartition("-")[2])


@dataclass(frozen=True)
class Sought:
    """A job that the controller wants to hear about."""

    token: str
    #: The scheduler's id for it, if it is known.
    job: str
    #: When it was submitted, by the controller's clock.
    since: float


class SubmitAnswer(Enum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Submission:
    """What came of sending one job. UNKNOWN: it may or may not exist, now or later."""

    answer: SubmitAnswer
    job: str = ""
    reason: str = ""
    #: For REJECTED: the same request may be accepted later.
    transient: bool = False


class Scheduler(ABC):
    """One cluster, seen by one experiment."""

    patience: Patience
    #: How long one question to the scheduler may take, in seconds.
    timeout: float = 30.0
    #: How often `up` looks, at the longest, in seconds.
    interval: float = 15.0
    #: The most jobs that go into one `submit`.
    batch: int = 500
    #: Jobs see the experiment's directory. If not, everything travels with them (`outlast.exchange`).
    shares_files: bool = True
    #: A chain is one job, which starts itself again in its place.
    chains_in_place: bool = False
    #: `wait` notices by itself when something happens to a job.
    hears: bool = False
    #: The signal (without SIG) by which it tells a job that its limit is near, where that means nothing else.
    limit_signal: str | None = None
    #: The most jobs at once, and the most submitted in a minute; None: as many as there are.
    most_jobs: int | None = None
    submit_rate: int | None = None
    #: Called before each of the many calls that one submission may need: the controller says that it lives.
    #: It raises if another one is in charge by now, and nothing more is to be sent.
    beat: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    def render(self, requests: Sequence[JobRequest]) -> str:
        """Exactly what `submit` would send, for `submit --dry-run`."""

    @abstractmethod
    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        """Send jobs; one answer for each token. Never raises for trouble with the scheduler."""

    @abstractmethod
    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        """All jobs of this experiment that the scheduler lists, by token, in one call.

        Those `sought` that are no longer listed are looked up in its accounting. Of several jobs with one
        token (see `JobRequest.jobs`) there is one view: RUNNING if one runs, else QUEUED if one waits, else
        how the last one ended. Raises SchedulerUnavailable.
        """

    @abstractmethod
    def cancel(self, views: Sequence[JobView]) -> None:
        """Ask for the end of these jobs, all that have the view's token.

        Raises SchedulerUnavailable; a job already gone is no error.
        """

    def release(self, views: Sequence[JobView]) -> None:
        """Let these held jobs go on. Raises SchedulerUnavailable; a job no longer held is no error."""
        raise NotImplementedError("no job is ever HELD here")

    def remarks(self) -> Sequence[str]:
        """What was odd about the scheduler's answers since this was last asked; each oddity once."""
        return ()

    def forget(self, tokens: Sequence[str]) -> None:
        """These jobs' ends are in the journal; the scheduler need not remember them. Best effort."""
        return

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, or earlier if something may have changed."""
        import time

        time.sleep(seconds)

    def hosts(self) -> Sequence[str]:
        """Names a job could run on, where the scheduler knows them; empty where it does not."""
        return ()
