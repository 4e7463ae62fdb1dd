"""The interface of an exchange: controller and jobs communicate through files, never through a socket.

Work orders go out, event logs come back, a fence keeps a late job from starting, and accepted results are
published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outlast.domain.model import Attempt, Run, Spec
from outlast.domain.observation import Report
from outlast.schedulers.base import JobRequest


@dataclass(frozen=True)
class Publication:
    """What was published: whether that is no file at all, and where files are that were too large."""

    is_empty: bool = False
    left: str = ""


class ResultGone(Exception):
    """An accepted result had disappeared before it was published."""


class FilesGone(OSError):
    """The directory of an attempt is gone, with its claims, logs and deliveries."""

    def __init__(self, path: str) -> None:
        super().__init__("its directory %s is gone" % path)
        self.path = path


class Exchange(Protocol):
    """The files of one experiment, as the controller uses them.

    `fence`, `shut`, `settle` and `report` raise FilesGone if the attempt's directory is gone, and other
    errors as OSError with the path.
    """

    def place(self, attempt: Attempt) -> str:
        """Return the path of the attempt's directory, for messages."""
        ...

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        """Write the work order of an attempt. Raise OSError."""

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        """Return the request for the scheduler."""
        ...

    def fence(self, attempt: Attempt) -> bool:
        """Keep jobs from starting on this attempt; return False if one has started already. Repeatable."""
        ...

    def shut(self, attempt: Attempt) -> None:
        """Keep further jobs from starting on this attempt, even if one has started before."""

    def settle(self, attempt: Attempt) -> None:
        """Move the files that an ended attempt left to where the next one expects them. Repeatable."""

    def report(self, attempt: Attempt) -> Report | None:
        """Return the report of the attempt's job; None if it has logged nothing."""
        ...

    def last_output(self, attempt: Attempt) -> Sequence[str]:
        """Return the last lines that the attempt's job printed; none if they cannot be read."""
        ...

    def publish(self, attempt: Attempt) -> Publication:
        """Move the attempt's delivery to `results/`. Repeatable. Raise ResultGone or OSError."""
        ...

    def reject(self, attempt: Attempt, reason: str) -> str:
        """Keep outputs that failed their checks in `results/`. Repeatable. Raise OSError.

        Return the path of their directory; empty if there are none.
        """
        ...

    def retire(self, run: Run) -> None:
        """Remove the files that a finished run no longer needs."""
