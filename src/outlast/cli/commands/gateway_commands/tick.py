"""`outlast gateway tick`: take, submit, follow and answer once, for cron."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli import ERROR
from outlast.cli.common import directory_argument, json_option, write_json
from outlast.cli.gateway_common import gateway_at, require_client_library


@click.command()
@directory_argument
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Serve once and return, for cron: take requests, submit and follow runs, send answers.

    With `* * * * *` in a crontab a request waits up to a minute until it is taken, and its answer up to a
    minute after the run has ended; cancelling takes as long. Exits with 2 if the broker cannot be reached.
    """
    from outlast.gateway.running import describe_ticked, run_tick

    gateway = gateway_at(directory)
    require_client_library()
    ticked = run_tick(gateway)
    if as_json:
        write_json(vars(ticked))
    else:
        for name, trouble in sorted(ticked.troubles.items()):
            click.echo("%s: %s; nothing is lost, and the next tick tries again" % (name, trouble), err=True)
        click.echo(describe_ticked(ticked))
    if not ticked.connected:
        ctx.exit(ERROR)
