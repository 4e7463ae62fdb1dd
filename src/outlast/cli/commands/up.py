"""`outlast up`: supervise until all runs have ended."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import directory_argument, experiment_at, json_option, some, where, write_json
from outlast.controller.inbox import Inbox
from outlast.domain.model import RunState
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.journal.sqlite_file import is_blank


@click.command()
@directory_argument
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Supervise until all runs have ended.

    Ctrl-C leaves the jobs running; any later `up` or `tick` goes on where this one stopped.
    """
    ctx.exit(supervise(experiment_at(directory), directory, as_json, "up"))


def supervise(experiment: Experiment, directory: Path, as_json: bool, purpose: str) -> int:
    """The exit code: 0 if all runs finished, 1 if one failed or was cancelled, 130 if interrupted."""
    from outlast.cli.live import Display
    from outlast.controller.supervisor import control

    if is_blank(experiment.journal) and not Inbox(experiment.inbox).names():
        raise BadInput(
            "%s: nothing has been submitted here yet; type `outlast run` to begin" % experiment.root
        )
    signal.signal(signal.SIGTERM, _interrupt)
    display = Display(experiment, directory=directory, quiet=as_json)
    try:
        with control(experiment, purpose, display.entries) as session, display.showing(session.journal):
            while True:
                display.passed(session.step())
                if session.done:
                    break
                session.wait(display.refresh)
            counts = session.journal.counts()
            failed = [run.name for run in session.journal.runs() if run.state is RunState.FAILED]
    except KeyboardInterrupt:
        click.echo(
            "\nstopped supervising; jobs that are under way go on. `outlast up%s` takes it up again, "
            "`outlast cancel --all%s` ends them"
            % (where(directory), " -C %s" % directory if str(directory) != "." else ""),
            err=True,
        )
        return INTERRUPTED
    if as_json:
        write_json({"runs": counts, "failed": failed})
    else:
        _conclude(counts, failed, directory)
    return 0 if set(counts) <= {RunState.FINISHED.value} else FAILED


def _conclude(counts: object, failed: list[str], directory: Path) -> None:
    assert isinstance(counts, dict)
    click.echo(
        "all runs have ended: " + ", ".join("%d %s" % (n, state) for state, n in sorted(counts.items()))
    )
    if failed:
        click.echo("failed: %s; `outlast explain %s` says why" % (some(failed), directory / failed[0]))
    click.echo("where the time went: `outlast report%s`" % where(directory))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
