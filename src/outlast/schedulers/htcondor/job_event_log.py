"""Reading HTCondor's event log, from where the last reading ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.schedulers.base import JobPhase
from outlast.schedulers.htcondor.job_history import Event, JobHistory, begin, follow

#: Of several jobs with one token, the one to tell about.
_TELLING = (JobPhase.RUNNING, JobPhase.HELD, JobPhase.QUEUED, JobPhase.ENDED)


class JobEventLog:
    """The stories in one event log. What was read is kept, and can be read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: Any = None
        self._file: tuple[int, int] = (0, 0)
        self._stories: dict[str, JobHistory] = {}

    def read(self) -> None:
        """Up to the end of the file. A log that is not there, or cannot be read, tells nothing new."""
        import htcondor2

        mark = self._mark()
        if mark is None:
            return
        if self._reader is not None and (mark[0] != self._file[0] or mark[1] < self._file[1]):
            # Another file under this name.
            self._close()
        if mark == self._file:
            return
        try:
            if self._reader is None:
                self._stories = {}
                self._reader = htcondor2.JobEventLog(str(self.path))
            for event in self._reader.events(stop_after=0):
                self._take("%d.%d" % (event.cluster, event.proc), _plain(event))
        except (htcondor2.HTCondorException, OSError, ValueError):
            # Begun anew when there is more to read; meanwhile the queue and the history tell.
            self._close()
            self._file = mark
        else:
            self._file = mark

    @property
    def grown(self) -> bool:
        """There is something to read."""
        return self._mark() not in (None, self._file)

    def stories(self) -> dict[str, JobHistory]:
        """By token."""
        told: dict[str, JobHistory] = {}
        for story in self._stories.values():
            other = told.get(story.token)
            if other is None or _TELLING.index(story.phase) <= _TELLING.index(other.phase):
                told[story.token] = story
        return told

    def forget(self, tokens: set[str]) -> None:
        self._stories = {job: story for job, story in self._stories.items() if story.token not in tokens}

    def _take(self, job: str, event: Event) -> None:
        story = self._stories.get(job)
        if event.number == 0:
            # A schedd that lost its queue gives the same ids again.
            begun = begin(event, job)
            if begun is not None:
                self._stories[job] = begun
        elif story is not None:
            self._stories[job] = follow(story, event)

    def _mark(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._file = (0, 0)


def _plain(event: Any) -> Event:
    return Event(int(event["EventTypeNumber"]), float(event.timestamp), event)
