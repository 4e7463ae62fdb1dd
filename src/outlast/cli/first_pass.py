"""Sending jobs at once, from `submit` and `retry`, and what is told of that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.common import LONGEST_PASS
from outlast.cli.refusal_hints import advice
from outlast.domain.model import EntryKind
from outlast.exchange.experiment import Experiment
from outlast.text import printable

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor

#: Runs that are told of one by one.
MOST_TOLD = 5


class Sending:
    """One pass of a controller's, for `carry_out`. `directory`: the experiment's, as the user named it."""

    def __init__(self, experiment: Experiment, directory: Path, budget: float = LONGEST_PASS) -> None:
        self._experiment = experiment
        self._directory = directory
        self._budget = budget
        self._trouble = ""
        #: There is something left to supervise.
        self.live = True
        #: By run: the scheduler's id of the job that was sent.
        self.jobs: dict[str, str] = {}
        #: By run: why its job was refused for good, and what to do.
        self.refused: dict[str, str] = {}

    def __call__(self, session: Supervisor) -> None:
        journal = session.journal
        before = journal.last_entry()
        self._trouble = session.step(budget=self._budget).trouble
        self.live = bool(journal.live())
        for row in journal.entries(after=before):
            entry = row.entry
            if entry.kind is EntryKind.QUEUED:
                self.jobs[entry.run] = entry.data["job"]
            run = journal.run(entry.run) if entry.kind is EntryKind.FAILED else None
            if run is not None:
                hint = advice(journal, run, self._experiment.root, self._directory)
                self.refused[run.name] = "; ".join(filter(None, (printable(run.reason), hint)))

    def tell_trouble(self) -> None:
        if self._trouble:
            text = "the scheduler does not answer yet: %s; the runs are kept, and sent once it does"
            click.echo(text % self._trouble, err=True)
        lines = ["%s FAILED: %s" % item for item in self.refused.items()]
        for line in some_lines(lines):
            click.echo(line, err=True)

    def tell_jobs(self) -> None:
        for line in some_lines(["%s was sent as job %s" % item for item in self.jobs.items()]):
            click.echo(line)


def some_lines(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_TOLD
    return [*lines[:MOST_TOLD], "… and %d more; see `outlast status`" % more] if more > 0 else lines
