"""The first pass over new jobs, right after `submit` or `retry`, and its messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli import FAILED
from outlast.cli.common import LONGEST_PASS
from outlast.cli.refusal_hints import suggest_retry
from outlast.domain.model import EntryKind, Outcome
from outlast.exchange.experiment import Experiment
from outlast.text import printable

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor

#: Runs that are listed one by one.
MOST_LISTED = 5


class FirstPass:
    """A pass of the controller, to be given to `carry_out`.

    `directory` is the experiment's, as the user named it. `budget` is the time for submissions in seconds.
    """

    def __init__(self, experiment: Experiment, directory: Path, budget: float = LONGEST_PASS) -> None:
        self._experiment = experiment
        self._directory = directory
        self._budget = budget
        self._scheduler_error = ""
        #: True if there are runs left to supervise.
        self.live = True
        #: By run: the scheduler's id of the job that was submitted.
        self.jobs: dict[str, str] = {}
        #: By run: why its job was refused for good, and what to do.
        self.refused: dict[str, str] = {}
        #: By run: why its job was refused this time; it is submitted again later.
        self.refused_for_now: dict[str, str] = {}

    def __call__(self, session: Supervisor) -> None:
        journal = session.journal
        before = journal.last_entry()
        self._scheduler_error = session.step(budget=self._budget).scheduler_error
        self.live = bool(journal.live())
        kinds = (EntryKind.QUEUED, EntryKind.ENDED, EntryKind.FAILED)
        for row in journal.entries(after=before, kinds=kinds):
            entry = row.entry
            if entry.kind is EntryKind.QUEUED:
                self.jobs[entry.run] = entry.data["job"]
            if entry.kind is EntryKind.ENDED and entry.data["outcome"] == Outcome.REJECTED.value:
                self.refused_for_now[entry.run] = printable(entry.data["detail"])
            run = journal.run(entry.run) if entry.kind is EntryKind.FAILED else None
            if run is not None:
                hint = suggest_retry(journal, run, self._experiment.root, self._directory)
                self.refused[run.name] = "; ".join(filter(None, (printable(run.reason), hint)))
                self.refused_for_now.pop(run.name, None)

    @property
    def exit_code(self) -> int:
        """0, or 1 if a job was refused."""
        return FAILED if self.refused else 0

    def print_errors(self) -> None:
        """Print the scheduler's error and the refused runs to stderr."""
        if self._scheduler_error:
            text = "the scheduler does not respond: %s; the runs are saved and will be submitted once it does"
            click.echo(text % self._scheduler_error, err=True)
        lines = ["%s FAILED: %s" % item for item in self.refused.items()]
        later = "%s: refused for now: %s; it will be submitted again"
        lines += [later % item for item in self.refused_for_now.items()]
        for line in _limit(lines):
            click.echo(line, err=True)

    def print_jobs(self) -> None:
        """Print the jobs that were submitted."""
        for line in _limit(["%s: submitted as job %s" % item for item in self.jobs.items()]):
            click.echo(line)


def _limit(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LISTED
    return [*lines[:MOST_LISTED], "… and %d more; see `outlast status`" % more] if more > 0 else lines
