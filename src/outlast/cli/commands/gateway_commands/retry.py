"""`outlast gateway retry`: run a failed request again, or send an undelivered answer again."""

from __future__ import annotations

import time
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


@click.command()
@click.argument("id", metavar="ID")
@gateway_option
@json_option
def command(id: str, directory: Path, as_json: bool) -> None:
    """Run a request that has failed again, or send an answer again that could not be delivered.

    ID is the id, the number or the run of a request, or a part of these that no other request has. A request
    that runs again resumes from its checkpoints, with the template as it is now, and its sender gets a second
    answer.
    """
    from outlast.gateway.retrying import retry_request

    gateway = gateway_at(directory)
    with open_record(gateway, directory) as record, open_audit(gateway) as audit:
        found = find_request(record, id)
        retried = retry_request(gateway, record, found, time.time())
        facts = {"id": found.shown_id, "what": retried.what, "by": "command line"}
        audit.write("retry", request=found.number, **facts)
    if as_json:
        write_json({"request": found.number, "run": found.run or None, "retried": retried.what})
        return
    click.echo("%s: %s" % (describe_request(found), retried.text))
    click.echo(how_to_run(gateway, directory))
