"""The exceptions that users see. Each message has the fact, the cause, and what to type next.

OutlastError                      shown as one clear line, exit code 2
├── BadInput                      a mistake in a file or on the command line, with file and line
├── JournalHeld                   another controller supervises this experiment
│   └── JournalLocked             another process has locked the journal's file for a while
├── JournalDamaged                the journal cannot be read
├── NotWritable                   no permission, no space, no such directory
│   └── JournalUnavailable        the journal's disk is full, read-only or does not respond
└── SchedulerUnavailable          (schedulers.base) the scheduler did not respond
"""

from __future__ import annotations


class OutlastError(Exception):
    """Base class of errors that are shown to users without a traceback."""


class BadInput(OutlastError):
    """A mistake in a file or on the command line."""


class JournalHeld(OutlastError):
    """Another controller holds the lease on the journal."""

    def __init__(self, text: str, supervises: bool = False) -> None:
        super().__init__(text)
        #: The other controller runs until all runs have ended, and handles requests.
        self.supervises = supervises


class JournalLocked(JournalHeld):
    """Another process has locked the journal's file for longer than a transaction takes."""


class JournalDamaged(OutlastError):
    """The journal cannot be read."""


class NotWritable(OutlastError):
    """A file or directory cannot be written."""


class JournalUnavailable(NotWritable):
    """The journal can neither be read nor written now: its disk is full, read-only or does not respond."""
