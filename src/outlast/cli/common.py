"""What the commands share: finding the experiment and the run, and how things are written."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.controller.inbox import Inbox
from outlast.domain.model import Run
from outlast.errors import BadInput, JournalHeld
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import LONGEST_PATH, is_blank

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor

#: Seconds to wait for another command that holds the experiment for a moment, and for one pass.
LONGEST_WAIT = 15.0
LONGEST_PASS = 3.0

#: Colours of states and outcomes on a terminal.
COLOURS = {
    "finished": "green",
    "accepted": "green",
    "useful": "green",
    "failed": "red",
    "crashed": "red",
    "wrong-output": "red",
    "out-of-memory": "red",
    "rejected": "red",
    "cancelled": "yellow",
    "lost": "yellow",
    "evicted": "yellow",
    "running": "cyan",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
directory_argument = click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path)
)
cluster_option = click.option(
    "--cluster", "cluster", metavar="NAME", help="Another cluster than the one in params.yaml."
)
here_option = click.option(
    "-C", "--directory", "directory", metavar="DIR", default=".", type=click.Path(path_type=Path),
    help="The experiment, if it is not the current directory.",
)  # fmt: skip


def experiment_at(directory: Path) -> Experiment:
    root = directory.absolute()
    if root.exists() and not root.is_dir():
        raise BadInput("%s: not a directory; name the experiment that params.yaml is in" % directory)
    if len(os.fsencode(root)) > LONGEST_PATH - 20:
        raise BadInput("%s: the path is too long for a journal; move the experiment" % directory)
    if not root.is_dir():
        raise BadInput("%s: no such directory; `outlast init %s` makes one" % (directory, directory))
    if not (root / "params.yaml").exists() and not (root / "journal.sqlite").exists():
        raise BadInput(
            "%s: not an experiment, there is no params.yaml in it; `outlast init %s` makes one"
            % (root, directory)
        )
    return Experiment(root)


def open_journal(experiment: Experiment) -> Journal:
    """For reading."""
    if is_blank(experiment.journal):
        waiting = len(Inbox(experiment.inbox).names())
        if waiting:
            raise BadInput(
                "%s: %s for a controller; type `outlast up` to begin"
                % (experiment.root, requests_wait(waiting))
            )
        raise BadInput(
            "%s: nothing has been submitted here yet; type `outlast run` to begin" % experiment.root
        )
    return Journal(experiment.journal)


def requests_wait(number: int) -> str:
    return "1 request waits" if number == 1 else "%d requests wait" % number


def locate(target: str | None, directory: Path) -> tuple[Experiment, str | None]:
    """RUN as people write it: a name here (or in `-C DIR`), else DIR/name or an experiment's directory."""
    if target is not None and ("/" in target or _is_nowhere(directory)):
        path = Path(target)
        if (path / "params.yaml").exists():
            return experiment_at(path), None
        if (path.parent / "params.yaml").exists() and str(path.parent) != ".":
            return experiment_at(path.parent), path.name
    return experiment_at(directory), target


def _is_nowhere(directory: Path) -> bool:
    """No `-C` was given, and this directory is no experiment."""
    return str(directory) == "." and not (directory / "params.yaml").exists()


def carry_out(experiment: Experiment, purpose: str, work: Callable[[Supervisor], None]) -> str:
    """Be the controller for a moment. Where another one supervises, it is told who picks the request up."""
    from outlast.controller.supervisor import control

    until = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            with control(experiment, purpose, timeout=LONGEST_PASS) as session:
                work(session)
            return ""
        except JournalHeld as held:
            if held.supervises:
                return "%s; it picks this up" % held
            if time.monotonic() > until:
                return "%s; the request is kept, type `outlast up` to carry it out" % held
        time.sleep(0.2)


def find_run(journal: Journal, name: str | None, otherwise: str = "") -> Run:
    """One run: by its name, or by a part of it that no other has; the only one if no name is given."""
    names = journal.names()
    if name is None:
        if not names:
            raise BadInput("there are no runs yet")
        if len(names) == 1:
            name = names[0]
        else:
            raise BadInput("which run? There are %d: %s%s" % (len(names), some(names), otherwise))
    run = journal.run(name)
    if run is not None:
        return run
    alike = [known for known in names if name in known]
    if len(alike) == 1:
        found = journal.run(alike[0])
        assert found is not None
        return found
    if alike:
        raise BadInput("%s could be %d runs: %s" % (name, len(alike), some(alike)))
    near = get_close_matches(name, names, 1)
    hint = "did you mean %s?" % near[0] if near else "there are %s" % (some(names) or "no runs")
    raise BadInput("no run is called %s; %s" % (name, hint))


def find_runs(journal: Journal, targets: Sequence[str], directory: Path, option: str) -> list[Run]:
    """The runs that were named; where none was, the only one there is. `option` would take more."""
    otherwise = "; name them, or say %s" % option
    names = [locate(target, directory)[1] for target in targets] or [None]
    return [find_run(journal, name, otherwise) for name in names]


def some(names: Sequence[str], most: int = 8) -> str:
    text = ", ".join(names[:most])
    return text + (", … (%d more)" % (len(names) - most) if len(names) > most else "")


def write_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def paint(word: str, text: str | None = None) -> str:
    """`text` in the colour of `word`; click removes it when the output is not a terminal."""
    return click.style(text or word, fg=COLOURS.get(word))


def clock(at: float | None) -> str:
    """A time of day, with the date if it is not today's."""
    if at is None:
        return "-"
    moment, today = time.localtime(at), time.localtime()
    same = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", moment)


def where(directory: Path) -> str:
    """The directory as a last word of a command to type; nothing if it is this one."""
    return "" if str(directory) == "." else " " + shlex.quote(str(directory))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Plain columns; `right` names those to be aligned right. Colours do not count as width."""
    body = [tuple(map(str, row)) for row in rows]
    widths = [max(len(click.unstyle(row[i])) for row in [tuple(head), *body]) for i in range(len(head))]
    lines = []
    for row in [tuple(click.style(title, bold=True) for title in head), *body]:
        cells = []
        for index, cell in enumerate(row):
            pad = " " * (widths[index] - len(click.unstyle(cell)))
            cells.append(pad + cell if index in right else cell + pad)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(map(_fitting, lines))


def _fitting(line: str) -> str:
    """Cut at the terminal's edge: a row that wraps is harder to read than one that ends in an ellipsis."""
    width = shutil.get_terminal_size().columns
    if not on_terminal() or len(click.unstyle(line)) <= width:
        return line
    return click.unstyle(line)[: width - 1] + "…"


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
