"""`outlast gateway drain`: take no more requests, finish those that are here."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.common import json_option, show_argument, write_json
from outlast.cli.gateway_common import gateway_argument, gateway_at, open_audit, open_record
from outlast.gateway.requests import RequestState
from outlast.text import counted

_OPEN = (RequestState.ACCEPTED, RequestState.RUNNING, RequestState.ENDED, RequestState.REFUSED)


@click.command()
@gateway_argument
@click.option("--off", is_flag=True, help="Take requests again.")
@json_option
def command(directory: Path, off: bool, as_json: bool) -> None:
    """Take no more requests from the broker; `gateway up` stops when the last one is answered.

    New requests wait in the broker. It stays drained, also when it is started again, until `--off`.
    """
    gateway = gateway_at(directory)
    with open_record(gateway, directory) as record:
        with open_audit(gateway) as audit:
            record.set_about("drain", "" if off else "yes")
            audit.write("drain", off=off, by="command line")
        counts = record.counts()
        answers, _ = record.waiting_answers()
    left = sum(states.get(state.value, 0) for states in counts.values() for state in _OPEN)
    place = show_argument(directory)
    if as_json:
        write_json({"draining": not off, "open": left, "answers": answers})
    elif off:
        click.echo("Requests are taken again, if the gateway is running: `outlast gateway status%s`." % place)
    else:
        open_ = "all requests are answered"
        if left or answers:
            open_ = "still to do: %s, %s" % (counted(left, "request"), counted(answers, "answer"))
        click.echo("No more requests are taken; %s." % open_)
        click.echo("`outlast gateway drain --off%s` takes requests again." % place)
