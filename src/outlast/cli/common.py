"""What the commands share: finding the experiment and the run, and how things are written."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from outlast.errors import BadInput
from outlast.experiment import Experiment
from outlast.journal import Journal, is_blank
from outlast.model import Run

Command = TypeVar("Command", bound=Callable[..., Any])

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
here_option = click.option(
    "-C", "--directory", "directory", metavar="DIR", default=".", type=click.Path(path_type=Path),
    help="The experiment, if it is not the current directory.",
)  # fmt: skip


def experiment_at(directory: Path) -> Experiment:
    root = directory.absolute()
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
        waiting = len(list(experiment.inbox.glob("[0-9]*.json")))
        if waiting:
            raise BadInput(
                "%s: %d request(s) wait for a controller; type `outlast up` to begin"
                % (experiment.root, waiting)
            )
        raise BadInput(
            "%s: nothing has been submitted here yet; type `outlast run` to begin" % experiment.root
        )
    return Journal(experiment.journal)


def locate(target: str | None, directory: Path) -> tuple[Experiment, str | None]:
    """RUN as people write it: a name, DIR/name, or the directory of an experiment."""
    if target is None:
        return experiment_at(directory), None
    path = Path(target)
    if (path / "params.yaml").exists():
        return experiment_at(path), None
    if len(path.parts) > 1 and (path.parent / "params.yaml").exists():
        return experiment_at(path.parent), path.name
    return experiment_at(directory), target


def find_run(journal: Journal, name: str | None) -> Run:
    """One run: by its name, or by a part of it that no other has; the only one if no name is given."""
    names = journal.names()
    if name is None:
        if len(names) == 1:
            name = names[0]
        else:
            raise BadInput("which run? There are %d: %s" % (len(names), some(names)))
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
    return "\n".join(lines)


def on_terminal() -> bool:
    return sys.stdout.isatty()
