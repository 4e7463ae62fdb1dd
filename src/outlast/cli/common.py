"""Helpers that the commands share: options, finding the experiment and the run, and formatting output."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.safe_output import has_colours
from outlast.errors import BadInput, JournalHeld

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor
    from outlast.domain.model import Run
    from outlast.exchange.experiment import Experiment
    from outlast.journal.journal import Journal

#: Seconds to wait for another command that holds the experiment for a moment, and for one pass.
LONGEST_WAIT = 15.0
LONGEST_PASS = 3.0
#: The parts of a JSON text that are printed at a time.
JSON_PARTS = 50_000
#: Columns that wrapped text has at least.
NARROWEST_TEXT = 24

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
    "held-back": "yellow",
    "lost": "yellow",
    "evicted": "yellow",
    "running": "cyan",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
directory_argument = click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path)
)
cluster_option = click.option(
    "--cluster", "cluster", metavar="NAME", help="Use this cluster instead of the one in params.yaml."
)
here_option = click.option(
    "-C", "--directory", "directory", metavar="DIR", default=".", type=click.Path(path_type=Path),
    help="Directory of the experiment, if not the current one.",
)  # fmt: skip


def experiment_at(directory: Path) -> Experiment:
    """Return the experiment in this directory. Raises BadInput if there is none."""
    from outlast.exchange.experiment import Experiment

    root = directory.absolute()
    if root.exists() and not root.is_dir():
        raise BadInput("%s: not a directory; name the directory that contains params.yaml" % directory)
    if is_too_long(root):
        raise BadInput("%s: the path is too long for the journal; move the experiment" % directory)
    if not root.is_dir():
        raise BadInput(
            "%s: no such directory; `outlast init %s` creates an experiment there" % (directory, directory)
        )
    if not (root / "params.yaml").exists() and not (root / "journal.sqlite").exists():
        from outlast.spec.own_code import init_command

        raise BadInput(
            "%s: not an experiment: there is no params.yaml in it; `%s` creates one"
            % (root, init_command(directory))
        )
    return Experiment(root)


def is_too_long(root: Path) -> bool:
    """Return True if SQLite could not open a file in this directory."""
    from outlast.journal.sqlite_file import LONGEST_PATH

    return len(os.fsencode(root)) > LONGEST_PATH - 20


def open_journal(experiment: Experiment) -> Journal:
    """Open the journal to read it. Raises BadInput if nothing has been recorded yet."""
    from outlast.controller.waiting_requests import waiting_requests
    from outlast.journal.journal import Journal
    from outlast.journal.sqlite_file import is_blank

    if is_blank(experiment.journal):
        waiting = len(waiting_requests(experiment.inbox))
        if waiting:
            raise BadInput(
                "%s: not started yet: %s; run `outlast up` to start"
                % (experiment.root, show_waiting_requests(waiting))
            )
        raise nothing_submitted(experiment)
    return Journal(experiment.journal)


def nothing_submitted(experiment: Experiment) -> BadInput:
    """Return the error for an experiment that has neither a journal nor requests."""
    return BadInput("%s: nothing has been submitted here yet; start with `outlast run`" % experiment.root)


def how_to_resume(directory: Path) -> str:
    """Return the commands that start runs that are held back."""
    place = show_argument(directory)
    return "after a fix run `outlast retry --failed%s`, or `outlast resume%s` to start them unchanged" % (
        " -C" + place if place else "",
        place,
    )


def show_waiting_requests(number: int) -> str:
    """Return `1 request is waiting` or `2 requests are waiting`."""
    return "1 request is waiting" if number == 1 else "%d requests are waiting" % number


def locate(target: str | None, directory: Path) -> tuple[Experiment, str | None]:
    """Return the experiment and the run's name that RUN stands for; the name is None if RUN names no run.

    RUN is the name of a run here (or in `-C DIR`), else DIR/name or the directory of an experiment.
    """
    if target is not None and ("/" in target or _is_outside_experiment(directory)):
        path = Path(target)
        if _is_experiment(path):
            return experiment_at(path), None
        if str(path.parent) == ".":
            return experiment_at(directory), path.name
        if _is_experiment(path.parent):
            return experiment_at(path.parent), path.name
    return experiment_at(directory), target


def locate_all(targets: Sequence[str], directory: Path) -> Experiment:
    """Return the experiment of all these runs, or the one in `directory` if none is named.

    Raises BadInput if they belong to several experiments.
    """
    experiments = [locate(target, directory)[0] for target in targets] or [experiment_at(directory)]
    found = {experiment.root.resolve(): None for experiment in experiments}
    if len(found) > 1:
        raise BadInput("%s and %s: name runs of one experiment at a time" % tuple(found)[:2])
    return experiments[0]


def check_selection(targets: Sequence[str], directory: Path, purpose: str, option: str) -> None:
    """Raise BadInput if a run is named beside an option that selects runs; an experiment may be named."""
    if len(targets) > 1 or any(locate(target, directory)[1] is not None for target in targets):
        raise BadInput("name the runs to %s or use %s, not both" % (purpose, option))


def _is_experiment(directory: Path) -> bool:
    return (directory / "params.yaml").exists() or (directory / "journal.sqlite").exists()


def _is_outside_experiment(directory: Path) -> bool:
    """Return True if no `-C` was given and the current directory is no experiment."""
    return str(directory) == "." and not _is_experiment(directory)


def carry_out(experiment: Experiment, purpose: str, work: Callable[[Supervisor], None]) -> str:
    """Hold the experiment and call `work`; return an empty string.

    If another command holds the experiment, return a sentence about it and about who processes the request.
    """
    from outlast.controller.supervisor import control

    until = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            with control(experiment, purpose, timeout=LONGEST_PASS) as session:
                work(session)
            return ""
        except JournalHeld as held:
            if held.supervises:
                return "%s; it will process this request" % held
            if time.monotonic() > until:
                return "%s; the request is saved: run `outlast up` to process it" % held
        time.sleep(0.2)


def find_run(journal: Journal, name: str | None, otherwise: str = "") -> Run:
    """Return the run with this name, or the only run whose name contains it, or the only run if None.

    Raises BadInput; `otherwise` is appended to the error if a name is required.
    """
    names = journal.names()
    if name is None:
        if not names:
            raise BadInput("there are no runs yet")
        if len(names) == 1:
            name = names[0]
        else:
            raise BadInput("which run? There are %d: %s%s" % (len(names), join_names(names), otherwise))
    # With LANG=C, letters outside ASCII arrive as bytes in disguise, which the journal does not take.
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    run = journal.run(name)
    if run is not None:
        return run
    matches = [known for known in names if name in known]
    if len(matches) == 1:
        found = journal.run(matches[0])
        assert found is not None
        return found
    if matches:
        raise BadInput("%s matches %d runs: %s" % (name, len(matches), join_names(matches)))
    from difflib import get_close_matches

    near = get_close_matches(name, names, 1)
    hint = "did you mean %s?" % near[0] if near else "the runs are: %s" % join_names(names)
    raise BadInput("no run is named %s; %s" % (name, hint if names else "there are no runs yet"))


def find_runs(journal: Journal, targets: Sequence[str], directory: Path, option: str) -> list[Run]:
    """Return the runs with these names, or the only run if none is named. `option` selects several."""
    otherwise = "; name the runs, or use %s" % option
    names = [locate(target, directory)[1] for target in targets] or [None]
    return [find_run(journal, name, otherwise) for name in names]


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Return `a, b, … (3 more)`: the first `most` names and the number of the others."""
    text = ", ".join(names[:most])
    return text + (", … (%d more)" % (len(names) - most) if len(names) > most else "")


def write_json(value: object) -> None:
    """Print a value as indented JSON, in parts: the whole text may take more memory than all else."""
    parts = json.JSONEncoder(indent=2, default=str).iterencode(value)
    while part := "".join(islice(parts, JSON_PARTS)):
        click.echo(part, nl=False)
    click.echo()


def add_colour(word: str, text: str | None = None) -> str:
    """Return `text` (default: the word) in the colour of `word`; click removes it if not on a terminal.

    On a terminal without colours, what failed gets a mark.
    """
    colour = COLOURS.get(word)
    if colour == "red" and on_terminal() and not has_colours():
        return "%s !" % (text or word)
    return click.style(text or word, fg=colour, bold=True if colour == "red" else None)


def show_time(at: float | None) -> str:
    """Return the local time of day, with the date unless it is today; `-` for None."""
    if at is None:
        return "-"
    moment, today = time.localtime(at), time.localtime()
    same = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", moment)


def show_argument(directory: Path) -> str:
    """Return the directory as the last argument of a command to type; empty for the current directory."""
    return "" if str(directory) == "." else " " + shlex.quote(str(directory))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = (), most_lines: int = 1
) -> str:
    """Return plain columns below their titles; `right` are the columns to align right.

    Colours do not count as width. On a terminal, lines are cut at its edge. Texts of the last column that do
    not fit are wrapped before, to at most `most_lines` lines: in their column, or below the row if that is
    too narrow.
    """
    body = [tuple(map(str, row)) for row in rows]
    widths = [max(len(click.unstyle(row[i])) for row in [tuple(head), *body]) for i in range(len(head))]
    room = terminal_width() - sum(width + 2 for width in widths[:-1]) if on_terminal() else 0
    lines = []
    for row in [tuple(click.style(title, bold=True) for title in head), *body]:
        last, more = _wrap_cell(row[-1], room, most_lines)
        cells = []
        for index, cell in enumerate((*row[:-1], last)):
            pad = " " * (widths[index] - len(click.unstyle(cell)))
            cells.append(pad + cell if index in right else cell + pad)
        lines += ["  ".join(cells).rstrip(), *more]
    return "\n".join(map(_cut_to_terminal, lines))


def _wrap_cell(cell: str, room: int, most_lines: int) -> tuple[str, list[str]]:
    """Return what fits into the last `room` columns of the terminal, and the lines below that continue it.

    Elsewhere, and if only one line is allowed, return the whole cell.
    """
    if most_lines == 1 or not on_terminal() or len(text := click.unstyle(cell).strip()) <= room:
        return cell, []
    import textwrap

    width = terminal_width()
    if room >= NARROWEST_TEXT:
        first, *more = textwrap.wrap(text, room, max_lines=most_lines, placeholder="…")
        return first, [" " * (width - room) + line for line in more]
    indent = " " * 4
    more = textwrap.wrap(
        text,
        max(width, NARROWEST_TEXT),
        initial_indent=indent,
        subsequent_indent=indent,
        max_lines=most_lines,
        placeholder="…",
    )
    return "", more


def wrap_line(line: str, indent: int) -> str:
    """Return the line; on a terminal, wrapped at spaces, and indented by `indent` columns after the first."""
    if not on_terminal() or len(click.unstyle(line)) <= terminal_width():
        return line
    import textwrap

    return textwrap.fill(
        line,
        max(terminal_width(), indent + NARROWEST_TEXT),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cut_to_terminal(line: str) -> str:
    # A row that wraps is harder to read than one that ends in an ellipsis.
    if not on_terminal() or len(click.unstyle(line)) <= (width := terminal_width()):
        return line
    return click.unstyle(line)[: width - 1] + "…"


def terminal_width() -> int:
    """Return the columns of the terminal, 80 if unknown."""
    import shutil

    return shutil.get_terminal_size().columns


def can_move_cursor() -> bool:
    """Return True if standard output is a terminal on which lines can be overwritten."""
    return on_terminal() and os.environ.get("TERM") != "dumb"


def on_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()
