"""`outlast up`: supervise the runs until all have ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import (
    directory_argument,
    experiment_at,
    how_to_resume,
    join_names,
    json_option,
    nothing_submitted,
    show_argument,
    write_json,
)
from outlast.controller.inbox import Inbox
from outlast.domain.model import RunState
from outlast.errors import JournalLocked, JournalUnavailable
from outlast.exchange.experiment import Experiment
from outlast.journal.sqlite_file import is_blank


@click.command()
@directory_argument
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Supervise the runs until all have ended.

    Ctrl-C leaves the jobs running; a later `up` or `tick` continues.
    """
    ctx.exit(supervise(experiment_at(directory), directory, as_json, "up"))


def supervise(experiment: Experiment, directory: Path, as_json: bool, purpose: str) -> int:
    """Supervise until all runs have ended or are held back, and return the exit code.

    0 if all runs finished, 1 if one failed, was cancelled or is held back, 130 if interrupted.
    """
    from outlast.cli.live import Display
    from outlast.controller.supervisor import control

    if is_blank(experiment.journal) and not Inbox(experiment.inbox).names():
        raise nothing_submitted(experiment)
    display = Display(experiment, directory=directory, quiet=as_json)
    try:
        with (
            _sigterm_as_interrupt(),
            control(experiment, purpose, display.print_entries) as session,
            display.showing(session.journal),
        ):
            while True:
                try:
                    display.after_pass(session.step())
                    if session.done:
                        break
                    session.wait(display.refresh)
                except (JournalUnavailable, JournalLocked) as error:
                    session.recover(error, display.print_journal_error)
            counts = session.journal.counts()
            failed = [run.name for run in session.journal.failed_runs()]
            held_back = [run.name for run in session.journal.live().values()]
    except KeyboardInterrupt:
        click.echo(
            "\nStopped supervising; jobs continue. Run `outlast up%s` to supervise again, or "
            "`outlast cancel --all%s` to cancel the runs."
            % (show_argument(directory), " -C" + show_argument(directory) if str(directory) != "." else ""),
            err=True,
        )
        return INTERRUPTED
    if as_json:
        write_json({"runs": counts, "failed": failed, "held_back": held_back})
    else:
        _print_summary(counts, failed, held_back, directory)
    return 0 if set(counts) <= {RunState.FINISHED.value} else FAILED


def _print_summary(
    counts: Mapping[str, int], failed: list[str], held_back: list[str], directory: Path
) -> None:
    over = "no run is under way" if held_back else "all runs have ended"
    click.echo("%s: %s" % (over, ", ".join("%d %s" % (n, state) for state, n in sorted(counts.items()))))
    if held_back:
        click.echo("held back: %s; %s" % (join_names(held_back), how_to_resume(directory)))
    if failed:
        click.echo("failed: %s; `outlast explain %s` shows why" % (join_names(failed), directory / failed[0]))
    click.echo("where the time went: `outlast report%s`" % show_argument(directory))


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, and restore the handler that was there: callers may go on to fork."""
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
