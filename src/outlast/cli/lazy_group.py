"""A group of commands that imports each command's module when it is called, so that `status` stays fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """Subclasses name their commands in `table`: module in `cli/commands`, and one line of help."""

    table: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return one command; None if there is no such command."""
        if name not in self.table:
            return None
        command: click.Command = importlib.import_module(
            "outlast.cli.commands." + self.table[name][0]
        ).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with; an unknown one is answered with the nearest."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.table, 1)
            # Not `ctx.command_path`, which is "python -m outlast" where that was typed.
            group = "outlast" if ctx.parent is None else "outlast %s" % ctx.info_name
            hint = "did you mean `%s %s`?" % (group, near[0]) if near else ""
            hint = hint or "`%s --help` lists the commands" % group
            raise click.UsageError("no such command: %s; %s" % (args[0], hint))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
