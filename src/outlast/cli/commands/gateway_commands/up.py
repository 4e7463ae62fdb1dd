"""`outlast gateway up`: serve requests until it is stopped."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from outlast.cli import INTERRUPTED
from outlast.cli.common import directory_argument, json_option, show_argument
from outlast.cli.gateway_common import gateway_at, require_client_library
from outlast.text import printable

#: The decisions that are printed, and their words.
_SHOWN = {
    "accepted": "accepted as {run}",
    "refused": "refused: {code}",
    "quarantined": "message {message} put aside: {reason}",
    "cancelling": "being cancelled ({code})",
    "ended": "ended: {code}",
    "answered": "answered",
    "put-off": "the broker did not take the answer ({result}); it is sent again",
    "undelivered": "the answer could not be delivered: {reason}",
}


@click.command()
@directory_argument
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Serve requests until Ctrl-C or SIGTERM, or until a drained gateway has nothing left.

    Jobs continue without it, and what it has acknowledged is in its record: start it again at any time.
    """
    from outlast.gateway.running import run_up

    gateway = gateway_at(directory)
    require_client_library()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    printer = _Printer(as_json)
    printer.show("gateway", "starting in %s; Ctrl-C stops it, jobs continue" % gateway.root)
    if run_up(gateway, printer.show, printer.decision):
        printer.show("gateway", "drained: nothing is left to do")
        return
    again = "outlast gateway up%s" % show_argument(directory)
    printer.show("gateway", "stopped; jobs continue. `%s` serves again" % again)
    ctx.exit(INTERRUPTED)


class _Printer:
    """Prints a line for each decision and each change of state."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, subject: str, text: str) -> None:
        """Print that something has changed."""
        if self._as_json:
            click.echo(json.dumps({"at": time.time(), "subject": subject, "text": text}))
        else:
            self._line(subject, text)

    def decision(self, event: str, facts: Mapping[str, object]) -> None:
        """Print a decision about a request."""
        if self._as_json:
            click.echo(json.dumps({"at": time.time(), "event": event, **facts}, default=str))
        elif event in _SHOWN:
            shown = {key: printable(str(value))[:200] for key, value in facts.items()}
            text = _SHOWN[event].format_map(_Missing(shown))
            subject = "request %s" % facts["request"] if facts.get("request") else "a message"
            if facts.get("code") == "duplicate_id":
                subject = "another message with the id of %s" % subject
            self._line(subject, text + (" (%s)" % shown["id"] if event == "accepted" else ""))

    def _line(self, subject: str, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        click.echo("%s %s: %s" % (stamp, printable(subject), printable(text)))


class _Missing(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"
