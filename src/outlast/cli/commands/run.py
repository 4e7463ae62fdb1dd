"""`outlast run`: submit and supervise."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.commands.submit import hand_over, tell
from outlast.cli.commands.up import supervise
from outlast.cli.common import cluster_option, directory_argument, experiment_at, json_option


@click.command()
@directory_argument
@cluster_option
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, cluster: str | None, as_json: bool) -> None:
    """Submit, and supervise until all runs have ended. The same as `submit` and then `up`."""
    experiment = experiment_at(directory)
    submitted = hand_over(experiment, cluster)
    if not as_json:
        tell(submitted)
    ctx.exit(supervise(experiment, directory, as_json, "run"))
