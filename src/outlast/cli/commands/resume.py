"""`outlast resume`: start the runs that are held back."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.common import (
    carry_out,
    directory_argument,
    experiment_at,
    join_names,
    json_option,
    open_journal,
    show_argument,
    write_json,
)
from outlast.cli.first_pass import FirstPass
from outlast.controller.inbox import Inbox, Resume
from outlast.domain.model import RunState
from outlast.journal.ownership import check_owner


@click.command()
@directory_argument
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Start the runs that are held back, as they were submitted.

    A run is held back if it has not begun and others failed alike, or if another user (an administrator)
    removed its job: ask why before you resume it. `outlast retry --failed` starts all of them with the
    current params.yaml and code.
    """
    experiment = experiment_at(directory)
    journal = open_journal(experiment)
    try:
        names = [run.name for run in journal.live().values() if run.state is RunState.HELD_BACK]
    finally:
        journal.close()
    first = FirstPass(experiment, directory)
    held = ""
    if names:
        check_owner(experiment.journal)
        Inbox(experiment.inbox).put(Resume())
        held = carry_out(experiment, "resume", first)
    if as_json:
        write_json({"resumed": names, "sent": first.jobs, "refused": first.refused, "held": held or None})
        return
    click.echo("resumed: %s" % join_names(names) if names else "no run is held back")
    if held:
        click.echo(held)
    elif names:
        first.print_jobs()
        first.print_errors()
        if first.live:
            place = show_argument(directory)
            click.echo("Run `outlast up%s` (or `outlast tick%s` from cron) to continue." % (place, place))
