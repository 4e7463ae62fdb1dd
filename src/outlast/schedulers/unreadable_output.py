"""Output of a scheduler's program that cannot be parsed: it is skipped, and reported once per program.

A site's own wrapper, a job with a strange name or a truncated line must not hide the other jobs. Nothing
follows from a skipped line for its job.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: Called with a line, or a record, that cannot be parsed.
ReportUnreadable = Callable[[str], None]

#: Numbers of schedulers fit into 64 bits, and Python refuses to parse thousands of digits.
_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)
_LONGEST_EXCERPT = 200
#: No real array has more tasks in one line.
_MOST_TASKS = 100_000


class UnreadableOutput:
    """Collects notes about unreadable output: one for each program, with the first example."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._notes: list[str] = []

    def reporter(self, program: str) -> ReportUnreadable:
        """Return the function that takes the unreadable lines of this program."""

        def report(line: str) -> None:
            if program not in self._reported:
                self._reported.add(program)
                excerpt = " ".join(line.split())[:_LONGEST_EXCERPT]
                self._notes.append("%s printed output that cannot be read; skipped: %s" % (program, excerpt))

        return report

    def pop_notes(self) -> list[str]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes


def ignore_unreadable(line: str) -> None:
    """Do nothing, for callers that do not report unreadable lines."""


def parse_number(text: str) -> int:
    """Parse a number without sign. Raises ValueError, also for other digits (such as a superscript)."""
    if not _DIGITS.fullmatch(text):
        raise ValueError("%r is not a number" % text[:_LONGEST_EXCERPT])
    return int(text)


def number_or_none(text: str) -> int | None:
    """Parse a number without sign; None if it is not one."""
    return int(text) if _DIGITS.fullmatch(text) else None


def parse_task_range(first: str, last: str, step: str = "1") -> range:
    """Return the task numbers of an array. Raises ValueError for implausible ones."""
    numbers = range(parse_number(first), parse_number(last) + 1, parse_number(step))
    if len(numbers) > _MOST_TASKS:
        raise ValueError("tasks %s to %s are too many" % (first, last))
    return numbers
