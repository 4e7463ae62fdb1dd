"""`outlast data`: fetch, check and pin data outside of jobs."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "fetch": ("data_fetch", "Fetch a file or archive, verify it, and unpack it if requested."),
    "check": ("data_check", "Check every source of an experiment's data. Fetches nothing."),
    "pin": ("data_pin", "Write digests and sizes into params.yaml."),
    "cache": ("data_cache", "List the entries of a data cache, or remove some."),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module("outlast.cli.commands." + _COMMANDS[name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup)
def command() -> None:
    """Fetch, check and pin data; list and clear data caches.

    Uses the same code as the jobs: what works here works there, if the network of the nodes allows it.
    """
