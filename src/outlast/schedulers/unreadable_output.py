"""What a scheduler's program printed and nobody can read: it is passed over, and said once.

A site's own wrapper, a job with a strange name or a torn line must not keep the other jobs from being seen.
What is passed over says nothing about its job.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: Takes a line, or a record, that cannot be read.
Odd = Callable[[str], None]

#: Numbers of schedulers fit into 64 bits, and Python refuses to read thousands of digits.
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_SHOWN = 200
#: More tasks than this in one line are no array that anybody has sent.
_MOST_TASKS = 100_000


class UnreadableOutput:
    """Each program is told of once, with the first example."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._untold: list[str] = []

    def of(self, program: str) -> Odd:
        def note(line: str) -> None:
            if program not in self._told:
                self._told.add(program)
                shown = " ".join(line.split())[:_SHOWN]
                self._untold.append("%s printed what cannot be read; passed over: %s" % (program, shown))

        return note

    def take(self) -> list[str]:
        """What has not been said yet."""
        taken, self._untold = self._untold, []
        return taken


def nothing_odd(line: str) -> None:
    """For readers whom oddities do not concern."""


def whole(text: str) -> int:
    """A number without sign. Raises ValueError, also for what only looks like one (such as a superscript)."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("%r is no number" % text[:_SHOWN])
    return int(text)


def whole_or_none(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def tasks_between(first: str, last: str, step: str = "1") -> range:
    """The numbers of an array's tasks. Raises ValueError for what no scheduler means."""
    numbers = range(whole(first), whole(last) + 1, whole(step))
    if len(numbers) > _MOST_TASKS:
        raise ValueError("tasks %s to %s are too many" % (first, last))
    return numbers
