"""`outlast gateway cancel`: cancel requests that have not ended."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.common import json_option, write_json
from outlast.cli.gateway_common import (
    describe_request,
    find_request,
    gateway_at,
    gateway_option,
    how_to_run,
    open_audit,
    open_record,
)
from outlast.gateway.requests import FailureCode


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@gateway_option
@json_option
def command(ids: tuple[str, ...], directory: Path, as_json: bool) -> None:
    """Cancel requests that have not ended; their senders get the answer `cancelled`.

    ID is the id, the number or the run of a request, or a part of these that no other request has.
    """
    gateway = gateway_at(directory)
    cancelling, over = [], []
    with open_record(gateway, directory) as record, open_audit(gateway) as audit:
        for found in [find_request(record, id) for id in ids]:
            if not record.ask_cancel(found.number, FailureCode.CANCELLED.value, "cancelled at the site"):
                over.append(found)
                continue
            cancelling.append(found)
            facts = {"id": found.shown_id, "user": found.user, "by": "command line"}
            audit.write("cancel", request=found.number, template=found.template, **facts)
    if as_json:
        numbers = {
            "cancelling": [one.number for one in cancelling],
            "over": [one.number for one in over],
        }
        write_json(numbers)
        return
    for one in over:
        click.echo("%s: already %s" % (describe_request(one), one.state.value))
    for one in cancelling:
        click.echo("cancelling %s" % describe_request(one))
    if cancelling:
        click.echo(how_to_run(gateway, directory))
