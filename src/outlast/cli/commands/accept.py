"""`outlast accept`: take outputs that failed their checks as the result of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.common import (
    carry_out,
    find_runs,
    here_option,
    join_names,
    json_option,
    locate,
    open_journal,
    write_json,
)
from outlast.controller.inbox import Accept, Inbox, can_accept
from outlast.domain.model import Run
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.journal.ownership import check_owner

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@here_option
@json_option
def command(runs: tuple[str, ...], directory: Path, as_json: bool) -> None:
    """Take outputs that failed their checks as the result.

    They are in results/RUN.rejected and move to results/RUN; the run is finished then.
    """
    experiment, _ = locate(runs[0], directory)
    journal = open_journal(experiment)
    try:
        found = find_runs(journal, runs, directory, "")
    finally:
        journal.close()
    for run in found:
        _check_rejected(experiment, run)
    names = tuple(run.name for run in found)
    check_owner(experiment.journal)
    Inbox(experiment.inbox).put(Accept(names))

    def publish(session: Supervisor) -> None:
        session.step(budget=0.0)

    held = carry_out(experiment, "accept", publish)
    if as_json:
        write_json({"accepted": names, "held": held or None})
        return
    click.echo("accepted: %s; results are in %s" % (join_names(names), experiment.results))
    if held:
        click.echo(held)


def _check_rejected(experiment: Experiment, run: Run) -> None:
    place = experiment.rejected(run.name)
    if not can_accept(run):
        raise BadInput(
            "%s is %s, and no outputs of it failed their checks; there is nothing to accept"
            % (run.name, run.state.value)
        )
    if not place.is_dir():
        raise BadInput("%s does not exist; `outlast retry %s` computes it again" % (place, run.name))
