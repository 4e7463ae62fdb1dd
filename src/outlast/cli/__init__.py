"""The command line. Each command is a module in `commands/`, imported when the command is called.

lazy_group        imports a command when it is called
common            options, finding experiments and runs, formatting
live              the display of `up`, `run` and `demo`;  scheduler_outage: its messages about an outage
current_state     what `status` shows of a run;  training_progress: the progress of its training
first_pass        the first pass over new jobs, for `submit` and `retry`
attempt_times     the jobs and times of an attempt;  save_table: what saving cost
safe_output       what is printed, without control characters of others
refusal_hints     how to fix a refused job or data
scheduler_checks  checks of an experiment against its scheduler
gateway_common    shared by the `gateway` commands
source_probe      checks of the data sources;  data_common, data_progress: shared by the `data` commands
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, TextIO, cast

import click

from outlast import __version__
from outlast.cli.lazy_group import LazyGroup
from outlast.cli.safe_output import SafeOutput, has_colours
from outlast.errors import OutlastError

#: Exit codes: 0 done, 1 a run failed or was cancelled, 2 wrong input or cannot continue, 130 interrupted.
FAILED, ERROR, INTERRUPTED = 1, 2, 130
#: The reader of our output closed it early; the code that a shell shows for a program that SIGPIPE ended.
OUTPUT_CLOSED = 141

#: Objects between two searches for cyclic garbage. Records have no cycles, and there are millions of them.
GARBAGE_THRESHOLD = 200_000

_COMMANDS = {
    "init": ("init", "Create an experiment that runs as it is."),
    "check": ("check", "Validate params.yaml and list all errors. Submits nothing."),
    "clusters": ("clusters", "List the clusters and the schedulers on this machine."),
    "submit": ("submit", "Submit the runs and return."),
    "run": ("run", "Submit the runs and supervise them until all have ended."),
    "up": ("up", "Supervise the runs until all have ended."),
    "chain": ("chain", "Submit each run as a chain of jobs; needs no supervision."),
    "tick": ("tick", "Check once and act on what changed (for cron)."),
    "status": ("status", "Show the state of every run."),
    "logs": ("logs", "Print the output of a run."),
    "explain": ("explain", "Show what happened in each attempt of a run, and why."),
    "cancel": ("cancel", "Cancel runs."),
    "accept": ("accept", "Take outputs that failed their checks as the result."),
    "retry": ("retry", "Retry failed or cancelled runs from their checkpoints."),
    "resume": ("resume", "Start runs that are held back, such as after others failed alike."),
    "report": ("report", "Show where the time went."),
    "data": ("data", "Fetch, check and pin data; list and clear data caches."),
    "gateway": ("gateway", "Serve training requests from a message broker."),
    "local": ("local", "Show the local cluster; kill or evict its jobs."),
    "demo": ("demo", "Watch a run survive kills, time limits and a torn checkpoint."),
}

#: Commands that must continue when the reader of their output is gone.
_SUPERVISING = {"up", "run", "demo"}


class _MainGroup(LazyGroup):
    table = _COMMANDS

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader (head, less) is gone. SIGPIPE itself stays ignored: a scheduler's program that exits
            # without reading its input must not end us.
            _redirect_to_null(sys.stdout)
            ctx.exit(OUTPUT_CLOSED)


@click.group(cls=_MainGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="outlast", message="%(prog)s %(version)s")
def group() -> None:
    """Outlast keeps training runs going until they finish, on clusters that kill jobs.

    Start with `outlast init DIR`, then `outlast run DIR`.
    """


def main() -> None:
    """Run the command line and exit. Every error becomes a message; no traceback is printed."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    if _is_supervising(sys.argv[1:]) and sys.stdout is not None:
        sys.stdout = cast(TextIO, _ClosableOutput(sys.stdout))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is not None:
            setattr(sys, name, SafeOutput(getattr(sys, name)))
    try:
        sys.exit(group.main(standalone_mode=False, **_colour_setting()) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(ERROR)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OutlastError as error:
        click.echo(str(error), err=True)
        sys.exit(ERROR)
    except OSError as error:
        click.echo("%s: %s" % (error.filename or "outlast", error.strerror or error), err=True)
        sys.exit(ERROR)
    except Exception as error:
        click.echo(_save_traceback(error), err=True)
        sys.exit(ERROR)


def _is_supervising(arguments: list[str]) -> bool:
    """Return True for a command that must continue when the reader of its output is gone."""
    return bool(_SUPERVISING & set(arguments[:1])) or arguments[:2] == ["gateway", "up"]


def _colour_setting() -> dict[str, Any]:
    """Return the setting of the context that leaves out colours where they are not wanted."""
    return {} if has_colours() else {"color": False}


class _ClosableOutput:
    """An output stream whose reader may close it: what is written afterwards is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            _redirect_to_null(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _redirect_to_null(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _redirect_to_null(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _save_traceback(error: Exception) -> str:
    """Write the traceback of a bug into a file; return the message that names it."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="outlast-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    return (
        "internal error in Outlast (%s: %s). Nothing is lost: jobs continue, and the journal is intact. "
        "Please report it and attach %s" % (type(error).__name__, error, file.name)
    )
