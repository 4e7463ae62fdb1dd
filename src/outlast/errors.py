"""One tree of errors. Every message says what, why, and what to type next.

OutlastError                      shown as one clear line, exit code 2
├── BadInput                      a mistake in a file or on the command line, with file and line
├── JournalHeld                   another controller works on this experiment
├── JournalDamaged                the journal is not readable as one
├── NotWritable                   no permission, no space, no such place
└── SchedulerUnavailable          (schedulers.base) the scheduler did not answer
"""

from __future__ import annotations


class OutlastError(Exception):
    """Base of all that is shown to a user without a traceback."""


class BadInput(OutlastError):
    """Something the user wrote cannot be meant."""


class JournalHeld(OutlastError):
    """Another controller holds the lease."""

    def __init__(self, text: str, supervises: bool = False) -> None:
        super().__init__(text)
        #: It stays until all runs have ended, and picks up what is asked for.
        self.supervises = supervises


class JournalDamaged(OutlastError):
    """The journal cannot be read."""


class NotWritable(OutlastError):
    """A place that must be written cannot be."""
