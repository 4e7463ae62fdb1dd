"""What the controller needs of an exchange: files between it and the jobs, never a socket.

Work orders go out, event logs come back, a fence keeps a late job from starting, accepted results are
published.
"""

from __future__ import annotations

from typing import Protocol

from outlast.domain.model import Attempt, Run, Spec
from outlast.domain.observation import Report
from outlast.schedulers.base import JobRequest


class ResultGone(Exception):
    """An accepted result was not there when it was to be published."""


class Exchange(Protocol):
    """The files of one experiment, as the controller uses them."""

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        """Write the work order of an attempt. Raises OSError."""

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        """Return what the scheduler is to be asked for."""
        ...

    def fence(self, attempt: Attempt) -> bool:
        """Return True if no job has worked on this attempt, and from now on none can."""
        ...

    def shut(self, attempt: Attempt) -> None:
        """Keep further jobs from working on this attempt, whether or not one has."""

    def settle(self, attempt: Attempt) -> None:
        """Move what an ended attempt left to where the next one looks for it. Repeatable."""

    def report(self, attempt: Attempt) -> Report | None:
        """Return what the attempt's job logged; None if it has logged nothing."""
        ...

    def publish(self, attempt: Attempt) -> None:
        """Move the attempt's delivery to `results/`. Repeatable. Raises ResultGone."""

    def retire(self, run: Run) -> None:
        """Remove what a finished run no longer needs."""
