"""What the gateway's record and the journal of its template say about a request, while the gateway runs."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.domain.model import Attempt, AttemptState
from outlast.exchange.attempt_log import last_progress, read_report
from outlast.exchange.experiment import Experiment
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.record.record import Record
from outlast.gateway.record.rows import RecordedRequest
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank


class Watcher:
    """Reads the state of the gateway in a directory. Nothing is kept open between two calls."""

    def __init__(self, directory: GatewayDirectory, template: str) -> None:
        self._directory = directory
        self._experiment = Experiment(directory.experiment(template))

    def requests(self) -> dict[str, RecordedRequest]:
        """Return all requests by id."""
        if is_blank(self._directory.record):
            return {}
        record = Record(self._directory.record)
        try:
            return {request.shown_id: request for request in record.requests()}
        finally:
            record.close()

    def attempts(self, run: str) -> Sequence[Attempt]:
        """Return the attempts of a run."""
        if is_blank(self._experiment.journal):
            return ()
        journal = Journal(self._experiment.journal)
        try:
            return list(journal.attempts(run))
        finally:
            journal.close()

    def attempt_beyond_checkpoint(self, run: str) -> tuple[Attempt, int] | None:
        """Return the running attempt that has made progress since it saved, and its step; None: no such."""
        for attempt in self.attempts(run):
            if attempt.state is not AttemptState.RUNNING:
                continue
            folder = self._experiment.exchange_of(attempt)
            progress = last_progress(folder / "progress.jsonl")
            report = read_report(folder / "events.jsonl", folder / "progress.jsonl")
            if progress is None or report is None or report.step is None:
                continue
            if progress["step"] > report.step:
                return attempt, progress["step"]
        return None
