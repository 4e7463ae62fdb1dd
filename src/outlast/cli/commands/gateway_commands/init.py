"""`outlast gateway init`: create a gateway with a template that runs as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from outlast.cli.common import json_option, wrap_line, write_json


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Create a gateway in DIR, which must be new or empty.

    It gets settings, templates, files for passwords, a unit for systemd and a line for cron.
    """
    from outlast.gateway.configuration.new_gateway import init_gateway

    written = init_gateway(directory)
    if as_json:
        write_json({"directory": str(directory.absolute()), "written": written})
        return
    for name in written:
        click.echo("wrote %s" % (directory / name))
    place = shlex.quote(str(directory))
    steps = (
        "Write host and queues into %s, and user and password into the files in %s."
        % (shlex.quote(str(directory / "gateway.yaml")), shlex.quote(str(directory / "credentials"))),
        "Type `outlast gateway check %s`: it shows all that will not work." % place,
        "Type `outlast gateway up %s`, in tmux or as a service (outlast-gateway.service); or add the "
        "line in the file `crontab` to your crontab." % place,
        "Type `outlast gateway send %s --template pages --wait` to try it (pages needs PyTorch and Pillow)."
        % place,
    )
    click.echo("Next:")
    for number, text in enumerate(steps, 1):
        click.echo(wrap_line("%d. %s" % (number, text), 3))
