"""`outlast gateway requests`: a table of requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from outlast.cli.common import add_colour, json_option, show_time, table, write_json
from outlast.cli.gateway_common import (
    gateway_argument,
    gateway_at,
    open_record,
    request_as_json,
    short_id,
    state_of,
    state_since,
)
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import RequestState
from outlast.text import counted, printable

#: Requests shown without `--last`.
SHOWN = 30
_COLUMNS = ("NUMBER", "ID", "TEMPLATE", "USER", "STATE", "SINCE", "RUN", "CODE")


@click.command()
@gateway_argument
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in RequestState]),
    help="Only requests in this state; may be given several times.",
)
@click.option("--template", metavar="NAME", default="", help="Only requests for this template.")
@click.option("--user", metavar="NAME", default="", help="Only requests of this user of the broker.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    help="Show the newest N.",
)
@json_option
def command(
    directory: Path, states: tuple[str, ...], template: str, user: str, last: int, as_json: bool
) -> None:
    """List requests, the newest at the end."""
    gateway = gateway_at(directory)
    chosen = [RequestState(state) for state in states]
    with open_record(gateway, directory) as record:
        found = list(record.requests(chosen, template=template, user=user, most=last + 1, newest_first=True))
    has_more = len(found) > last
    found = found[:last][::-1]
    if as_json:
        write_json({"requests": [request_as_json(one) for one in found], "more": has_more})
        return
    if not found:
        click.echo("no requests" if not (states or template or user) else "no such requests")
        return
    if has_more:
        click.echo("the newest %s; --last N shows more" % counted(last, "request"))
    click.echo(table(_COLUMNS, map(_row, found), right=(0,)))


def _row(request: RecordedRequest) -> Sequence[str]:
    failure = request.failure
    return (
        str(request.number),
        short_id(request),
        printable(request.template)[:20] or "-",
        printable(request.user)[:16] or "-",
        add_colour(_colour_of(request), state_of(request)),
        show_time(state_since(request)),
        request.run or "-",
        failure.code.value if failure else "-",
    )


def _colour_of(request: RecordedRequest) -> str:
    """Return the word of `COLOURS` for a request: green with a result, red with a failure."""
    if request.state is RequestState.RUNNING:
        return "running"
    if request.state is RequestState.UNDELIVERED or request.failure is not None:
        return "failed"
    return "finished" if request.state is RequestState.ANSWERED else ""
