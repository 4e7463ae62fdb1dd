"""The command line. Each command is in a file of its own and is imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, TextIO, cast

import click

from outlast import __version__
from outlast.errors import OutlastError

#: Exit codes: 0 done, 1 a run failed or was cancelled, 2 wrong input or cannot go on, 130 interrupted.
FAILED, CANNOT, INTERRUPTED = 1, 2, 130
#: Whoever read our output left before its end; what a shell shows for a program that SIGPIPE ended.
UNREAD = 141

_COMMANDS = {
    "init": ("init", "Make an experiment directory with a params.yaml that runs as it is."),
    "check": ("check", "Say every mistake in params.yaml at once; submit nothing."),
    "clusters": ("clusters", "List the clusters there are, and what of them is on this machine."),
    "submit": ("submit", "Hand the runs over; they are never lost from then on."),
    "run": ("run", "Submit, and supervise until all runs have ended."),
    "up": ("up", "Supervise until all runs have ended."),
    "chain": ("chain", "Send each run as dependent jobs; nothing has to keep running."),
    "tick": ("tick", "One look and what follows from it, for cron."),
    "status": ("status", "What every run is doing."),
    "logs": ("logs", "What a run printed."),
    "explain": ("explain", "Attempt by attempt: what happened, what was decided, why."),
    "cancel": ("cancel", "End runs that are under way."),
    "retry": ("retry", "Give failed or cancelled runs another chance, from their checkpoints."),
    "report": ("report", "Where the time went."),
    "data": ("data", "Fetch, check and pin data by hand, or look into a cache of it."),
    "local": ("local", "Look at the local cluster, or make trouble on it."),
    "demo": ("demo", "See a training outlast kills, limits and a torn checkpoint."),
}


_SUPERVISING = {"up", "run", "demo"}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module("outlast.cli.commands." + _COMMANDS[name][0])
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], _COMMANDS, 1)
            hint = "; did you mean `outlast %s`?" % near[0] if near else "; see `outlast --help`"
            raise click.UsageError("no such command: %s%s" % (args[0], hint))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader (head, less) has seen enough. SIGPIPE itself stays ignored: a scheduler's program
            # that leaves without reading what it is given must not end us.
            _mute(sys.stdout)
            ctx.exit(UNREAD)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="outlast", message="%(prog)s %(version)s")
def group() -> None:
    """Outlast brings a training to its end on clusters that kill it.

    Begin with `outlast init DIR`, then `outlast run DIR`.
    """


def main() -> None:
    """The entry point: no traceback reaches a user."""
    if _SUPERVISING & set(sys.argv[1:2]) and sys.stdout is not None:
        sys.stdout = cast(TextIO, _GoesOn(sys.stdout))
    try:
        sys.exit(group.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(CANNOT)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OutlastError as error:
        click.echo(str(error), err=True)
        sys.exit(CANNOT)
    except OSError as error:
        click.echo("%s: %s" % (error.filename or "outlast", error.strerror or error), err=True)
        sys.exit(CANNOT)
    except Exception as error:
        click.echo(_unexpected(error), err=True)
        sys.exit(CANNOT)


class _GoesOn:
    """An output whose reader may leave: what supervises goes on without one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            _mute(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _mute(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _mute(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _unexpected(error: Exception) -> str:
    """A bug of ours: the traceback goes into a file that can be sent to us."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="outlast-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    return (
        "a mistake in Outlast, not yours (%s: %s). Nothing is lost: jobs go on, the journal is whole. "
        "Please report it with %s" % (type(error).__name__, error, file.name)
    )
