"""What the controller asks of a scheduler.

An adapter is small: it renders a job, sends it, tells about all jobs of an experiment in one call and
cancels. It keeps no state of its own between calls and never decides anything; unknown stays unknown.

Jobs are known by their **token**, which the controller made up and committed before the scheduler was
called. A scheduler's own job id is for people and for `cancel`; it may be reused after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from outlast.errors import OutlastError
from outlast.observation import JobPhase, JobView, Patience

__all__ = [
    "Answer",
    "JobPhase",
    "JobRequest",
    "JobView",
    "Patience",
    "Scheduler",
    "SchedulerUnavailable",
    "Submission",
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


class Answer(Enum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Submission:
    """What came of sending one job. UNKNOWN: it may or may not exist, now or later."""

    answer: Answer
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

    @abstractmethod
    def render(self, request: JobRequest) -> str:
        """Exactly what `submit` would send, for `submit --dry-run`."""

    @abstractmethod
    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        """Send jobs; one answer for each token. Never raises for trouble with the scheduler."""

    @abstractmethod
    def poll(self) -> Mapping[str, JobView]:
        """All jobs of this experiment, by token, in one call. Raises SchedulerUnavailable."""

    @abstractmethod
    def cancel(self, views: Sequence[JobView]) -> None:
        """Ask for the end of these jobs. Raises SchedulerUnavailable; a job already gone is no error."""

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
