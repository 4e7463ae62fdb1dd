"""Read HTCondor's event log incrementally into job histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.schedulers.base import JobPhase
from outlast.schedulers.htcondor.job_history import Event, JobHistory, apply_event, start_history

#: The job in the first of these phases is the one to report if several jobs have one token.
_PRECEDENCE = (JobPhase.RUNNING, JobPhase.HELD, JobPhase.QUEUED, JobPhase.ENDED)


class JobEventLog:
    """An event log, with the histories of its jobs as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: Any = None
        #: Inode and size of the file as far as it was read.
        self._position: tuple[int, int] = (0, 0)
        self._histories: dict[str, JobHistory] = {}

    def read(self) -> None:
        """Read to the end of the file. A log that does not exist, or cannot be read, changes nothing."""
        import htcondor2

        end = self._stat()
        if end is None:
            return
        if self._reader is not None and (end[0] != self._position[0] or end[1] < self._position[1]):
            # Another file under this name.
            self._close()
        if end == self._position:
            return
        try:
            if self._reader is None:
                self._histories = {}
                self._reader = htcondor2.JobEventLog(str(self.path))
            for event in self._reader.events(stop_after=0):
                self._apply("%d.%d" % (event.cluster, event.proc), _to_event(event))
        except (htcondor2.HTCondorException, OSError, ValueError):
            # It is read again from the beginning when it grows; until then queue and history are used.
            self._close()
            self._position = end
        else:
            self._position = end

    @property
    def has_grown(self) -> bool:
        """True if there is something to read."""
        return self._stat() not in (None, self._position)

    def histories(self) -> dict[str, JobHistory]:
        """Return the histories by token."""
        by_token: dict[str, JobHistory] = {}
        for history in self._histories.values():
            other = by_token.get(history.token)
            if other is None or _PRECEDENCE.index(history.phase) <= _PRECEDENCE.index(other.phase):
                by_token[history.token] = history
        return by_token

    def forget(self, tokens: set[str]) -> None:
        """Drop the histories of these tokens."""
        self._histories = {
            job: history for job, history in self._histories.items() if history.token not in tokens
        }

    def _apply(self, job: str, event: Event) -> None:
        history = self._histories.get(job)
        if event.number == 0:
            # A schedd that lost its queue uses the same ids again.
            started = start_history(event, job)
            if started is not None:
                self._histories[job] = started
        elif history is not None:
            self._histories[job] = apply_event(history, event)

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._position = (0, 0)


def _to_event(event: Any) -> Event:
    return Event(int(event["EventTypeNumber"]), float(event.timestamp), event)
