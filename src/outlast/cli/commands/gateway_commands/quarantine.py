"""`outlast gateway quarantine`: messages that were put aside without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import json_option, show_argument, show_time, table, write_json
from outlast.cli.gateway_common import gateway_argument, gateway_at, how_to_run, open_audit, open_record
from outlast.errors import BadInput
from outlast.text import counted, printable
from outlast.units import show_size

if TYPE_CHECKING:
    from outlast.gateway.record.record import Record
    from outlast.gateway.record.rows import RecordedMessage

#: Messages that are listed, and bytes of a body that are shown.
MOST_LISTED = 200
MOST_BODY = 4000


@click.command()
@gateway_argument
@click.option("--show", metavar="N", type=int, help="Show message N: its properties and its body, escaped.")
@click.option("--release", metavar="N", type=int, multiple=True, help="Interpret message N again.")
@click.option("--discard", metavar="N", type=int, multiple=True, help="Remove message N from this list.")
@json_option
def command(
    directory: Path, show: int | None, release: tuple[int, ...], discard: tuple[int, ...], as_json: bool
) -> None:
    """List the messages that were put aside because they could not be answered.

    The broker does not have them any more. Without an option, lists them.
    """
    if sum(map(bool, (show is not None, release, discard))) > 1:
        raise click.UsageError("use one of --show, --release and --discard at a time")
    gateway = gateway_at(directory)
    with open_record(gateway, directory) as record:
        if show is not None:
            _show(_message(record, show, directory), as_json)
            return
        if not release and not discard:
            _list(record.quarantined(MOST_LISTED), record.count_quarantined(), directory, as_json)
            return
        state, event = ("recorded", "released") if release else ("discarded", "discarded")
        numbers = [_quarantined(record, number, directory).number for number in release or discard]
        with open_audit(gateway) as audit:
            for number in numbers:
                record.set_message(number, state, "%s at the site" % event)
                audit.write(event, message=number, by="command line")
    if as_json:
        write_json({event: numbers})
        return
    click.echo("%s: %s" % (event, ", ".join(map(str, numbers))))
    if release:
        click.echo(how_to_run(gateway, directory))


def _message(record: Record, number: int, directory: Path) -> RecordedMessage:
    found = record.message(number) if 0 < number < 2**63 else None
    if found is None:
        text = "no message has the number %d; `outlast gateway quarantine%s` lists them"
        raise BadInput(text % (number, show_argument(directory)))
    return found


def _quarantined(record: Record, number: int, directory: Path) -> RecordedMessage:
    found = _message(record, number, directory)
    if found.state != "quarantined":
        raise BadInput("message %d is not in quarantine (%s); nothing was changed" % (number, found.state))
    return found


def _list(found: Sequence[RecordedMessage], total: int, directory: Path, as_json: bool) -> None:
    if as_json:
        write_json({"total": total, "quarantined": [_as_json(one) for one in found]})
        return
    if not found:
        click.echo("no messages in quarantine")
        return
    rows = [
        (str(one.number), show_time(one.at), printable(one.delivery.queue), show_size(one.size), one.reason)
        for one in found
    ]
    click.echo(table(("NUMBER", "RECEIVED", "QUEUE", "SIZE", "REASON"), rows, right=(0, 3), most_lines=4))
    if total > len(found):
        click.echo("… and %s more" % counted(total - len(found), "message"))
    place = show_argument(directory)
    text = "`outlast gateway quarantine%s --show N` shows one; --release N interprets it again, --discard N "
    click.echo((text + "removes it from the list") % place)


def _as_json(message: RecordedMessage) -> dict[str, Any]:
    return {
        "number": message.number,
        "received": message.at,
        "queue": message.delivery.queue,
        "size": message.size,
        "digest": message.digest,
        "state": message.state,
        "reason": message.reason,
        "request": message.request,
    }


def _show(message: RecordedMessage, as_json: bool) -> None:
    body = message.delivery.body[:MOST_BODY]
    properties = {
        key: escape(value) if isinstance(value, bytes) else value
        for key, value in vars(message.delivery.properties).items()
        if value not in (None, "", False)
    }
    if as_json:
        write_json({**_as_json(message), "properties": properties, "body": escape(body)})
        return
    click.echo("message %d, received %s from queue %s" % (
        message.number, show_time(message.at), printable(message.delivery.queue),
    ))  # fmt: skip
    click.echo("state   %s%s" % (message.state, ": %s" % message.reason if message.reason else ""))
    click.echo("digest  %s" % message.digest)
    for key, value in properties.items():
        click.echo("%-16s  %s" % (key, value))
    click.echo("body    %s" % counted(message.size, "byte"))
    click.echo(escape(body))
    if message.size > len(body):
        click.echo("… %s not shown" % counted(message.size - len(body), "more byte"))


def escape(content: bytes) -> str:
    """Return bytes as text in which everything but printable characters and newlines is escaped."""
    text = content.decode("utf-8", "backslashreplace")
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )
