"""`outlast logs`: print the output of a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from outlast.cli.common import find_run, here_option, locate, on_terminal, open_journal
from outlast.cli.safe_output import LogFilter, unfiltered
from outlast.errors import BadInput
from outlast.exchange.attempt_log import log_directory
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.node.sandbox import layout
from outlast.text import counted
from outlast.untrusted_files import open_file

CHUNK = 65536


@click.command()
@click.argument("run", required=False)
@here_option
@click.option(
    "-f", "--follow", is_flag=True, help="Keep printing, attempt after attempt, until the run ends."
)
@click.option(
    "--attempt", "number", type=int, metavar="N", help="Print the output of attempt N; default: the last one."
)
def command(run: str | None, directory: Path, follow: bool, number: int | None) -> None:
    """Print the output of a run."""
    experiment, name = locate(run, directory)
    journal = open_journal(experiment)
    try:
        found = find_run(journal, name)
        if found.attempts == 0 and not follow:
            raise BadInput("%s has no attempts yet" % found.name)
        if number is not None and not 1 <= number <= found.attempts:
            raise BadInput(
                "%s has %s; there is no attempt %d" % (found.name, counted(found.attempts, "attempt"), number)
            )
        if follow:
            _follow(experiment, journal, found.name, number)
        else:
            _print(_find_log(experiment, journal, found.name, number or found.attempts))
    finally:
        journal.close()


def _find_log(experiment: Experiment, journal: Journal, name: str, number: int) -> Path:
    """Return the path of the log, or of the part that a job without a shared file system has sent so far."""
    path = experiment.log(name, number)
    if path.exists():
        return path
    sent = [
        log_directory(experiment.exchange_of(attempt)) / layout.LOG
        for attempt in journal.attempts(name)
        if attempt.number == number
    ]
    return next((place for place in sent if place.is_file()), path)


def _print(path: Path) -> None:
    if not path.exists() or not _copy(path, 0, LogFilter()):
        click.echo("%s: no output" % path, err=True)


def _follow(experiment: Experiment, journal: Journal, name: str, only: int | None) -> None:
    number = only or max(1, find_run(journal, name).attempts)
    offset, log_filter = 0, LogFilter()
    while True:
        journal.refresh()
        run = find_run(journal, name)
        path = _find_log(experiment, journal, name, number)
        if path.exists():
            offset = _copy(path, offset, log_filter)
        if run.attempts <= number and not run.state.over:
            time.sleep(0.3)
        elif only is not None or run.attempts <= number:
            return
        else:
            number, offset, log_filter = number + 1, 0, LogFilter()
            click.echo(click.style("--- attempt %d" % number, dim=True), err=True)


def _copy(path: Path, offset: int, log_filter: LogFilter) -> int:
    """Copy a file to stdout from this offset; return the offset of its end.

    A terminal gets no control characters; a file or a program gets every byte.
    """
    to_terminal = on_terminal()
    with open_file(path) as file:
        file.seek(offset)
        while chunk := file.read(CHUNK):
            if to_terminal:
                unfiltered(sys.stdout).write(log_filter.feed(chunk))
            else:
                sys.stdout.buffer.write(chunk)
            offset += len(chunk)
    sys.stdout.flush()
    return offset
