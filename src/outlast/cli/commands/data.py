"""`outlast data`: what the jobs do about data, by hand."""

from __future__ import annotations

import importlib

import click

_PARTS = {
    "fetch": ("data_fetch", "Fetch one file or archive, checked, resumed, unpacked if you like."),
    "check": ("data_check", "Ask every source of an experiment's data; fetch nothing."),
    "pin": ("data_pin", "Write digests and sizes into params.yaml."),
    "cache": ("data_cache", "What a cache of data holds; make room in it."),
}


class _Parts(click.Group):
    """Each is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PARTS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _PARTS:
            return None
        command: click.Command = importlib.import_module("outlast.cli.commands." + _PARTS[name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _PARTS.items()])


@click.group(cls=_Parts)
def command() -> None:
    """Fetch, check and pin data by hand, or look into a cache of it.

    It is the same code that brings data to jobs: what works here works there, network permitting.
    """
