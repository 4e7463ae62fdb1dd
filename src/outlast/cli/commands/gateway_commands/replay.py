"""`outlast gateway replay`: send a stored answer again."""

from __future__ import annotations

import time
from pathlib import Path

import click

from outlast.cli.common import json_option, write_json
from outlast.cli.gateway_common import (
    answer_as_json,
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
    """Send the stored answer to a request again; nothing is computed again.

    ID is the id, the number or the run of a request, or a part of these that no other request has. The
    requester may so get the same answer twice, with the same correlation id.
    """
    from outlast.gateway.retrying import replay_answer

    gateway = gateway_at(directory)
    with open_record(gateway, directory) as record, open_audit(gateway) as audit:
        found = find_request(record, id)
        answer = replay_answer(gateway, record, found, time.time())
        facts = {"id": found.shown_id, "answer": answer.number, "by": "command line"}
        audit.write("replay", request=found.number, **facts)
    if as_json:
        write_json({"request": found.number, "answer": answer_as_json(answer)})
        return
    click.echo(
        "the %s of %s is sent to %s again" % (answer.kind, describe_request(found), answer.routing_key)
    )
    click.echo(how_to_run(gateway, directory))
