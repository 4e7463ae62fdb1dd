"""`outlast cancel`: cancel runs that have not ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.common import (
    carry_out,
    check_selection,
    find_runs,
    here_option,
    join_names,
    json_option,
    locate_all,
    open_journal,
    write_json,
)
from outlast.controller.inbox import Cancel, Inbox, cancel_without_inbox
from outlast.errors import NotWritable
from outlast.journal.ownership import check_owner

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@here_option
@click.option("--all", "everything", is_flag=True, help="Cancel all runs that have not ended.")
@json_option
def command(runs: tuple[str, ...], directory: Path, everything: bool, as_json: bool) -> None:
    """Cancel runs that have not ended.

    Checkpoints are kept: `outlast retry` resumes from them.
    """
    if everything:
        check_selection(runs, directory, "cancel", "--all")
    experiment = locate_all(runs, directory)
    journal = open_journal(experiment)
    try:
        found = [] if everything else find_runs(journal, runs, directory, "--all")
        over = [run.name for run in found if run.state.over]
        names = tuple(journal.live_names() if everything else (r.name for r in found if not r.state.over))
    finally:
        journal.close()
    request = Cancel(None if everything else names, "cancelled by the user")
    unwritable: NotWritable | None = None
    if names:
        check_owner(experiment.journal)
        try:
            Inbox(experiment.inbox).put(request)
        except NotWritable as error:
            unwritable = error  # recorded directly, unless another controller holds the journal

    def wait_until_ended(session: Supervisor) -> None:
        if unwritable is not None:
            cancel_without_inbox(session.journal, request, time.time())
        for _ in range(10):
            session.step(budget=0.0)
            if not session.journal.live().keys() & set(names):
                break
            session.wait()

    held = carry_out(experiment, "cancel", wait_until_ended) if names else ""
    if held and unwritable is not None:
        raise unwritable
    if as_json:
        write_json({"cancelled": names, "over": over, "held": held or None})
        return
    if over:
        click.echo("already ended: %s" % join_names(over))
    click.echo("cancelling: %s" % join_names(names) if names else "nothing to cancel")
    if held:
        click.echo(held)
