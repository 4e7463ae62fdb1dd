"""`outlast gateway check`: everything that would fail only when the first request comes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from outlast.cli.common import add_colour, json_option, show_argument, wrap_line, write_json
from outlast.cli.gateway_checks import ERROR, WARNING, CheckedItem, GatewayChecks
from outlast.cli.gateway_common import gateway_argument, gateway_at
from outlast.text import counted, printable

_COLOUR = {ERROR: "failed", WARNING: "lost"}
_INDENT = 11


@click.command()
@gateway_argument
@json_option
@click.pass_context
def command(context: click.Context, directory: Path, as_json: bool) -> None:
    """Check the files, the broker, the application and the templates. Takes no messages and starts nothing.

    Exits with 0 if the gateway can serve requests, with 2 if not; warnings do not count.
    """
    gateway = gateway_at(directory)
    results: list[CheckedItem] = []
    subject = ""
    for result in GatewayChecks(gateway).run():
        results.append(result)
        if not as_json:
            _print(result, is_first=result.subject != subject)
        subject = result.subject
    errors = sum(result.level == ERROR for result in results)
    if as_json:
        write_json({"ok": not errors, "results": [asdict(result) for result in results]})
    elif errors:
        click.echo("\n%s; the gateway would not serve all requests" % counted(errors, "error"), err=True)
    else:
        click.echo("\nNo errors. Next: outlast gateway up%s" % show_argument(directory))
    context.exit(2 if errors else 0)


def _print(result: CheckedItem, is_first: bool) -> None:
    """Print a result below the title of its group."""
    if is_first:
        click.echo(click.style(printable(result.subject), bold=True))
    level = add_colour(_COLOUR.get(result.level, "finished"), result.level)
    pad = " " * (_INDENT - 2 - len(click.unstyle(level)))
    click.echo(wrap_line("  %s%s%s" % (level, pad, printable(result.text)), _INDENT))
    if result.advice:
        click.echo(wrap_line(" " * _INDENT + printable(result.advice), _INDENT))
