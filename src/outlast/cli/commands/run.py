"""`outlast run`: submit the runs and supervise them."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.commands.submit import print_submitted, submit_runs
from outlast.cli.commands.up import supervise
from outlast.cli.common import cluster_option, directory_argument, experiment_at, json_option


@click.command()
@directory_argument
@cluster_option
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, cluster: str | None, as_json: bool) -> None:
    """Submit the runs and supervise them until all have ended: `submit`, then `up`."""
    experiment = experiment_at(directory)
    submitted = submit_runs(experiment, cluster)
    if not as_json:
        print_submitted(submitted)
    ctx.exit(supervise(experiment, directory, as_json, "run"))
