"""The display of `up`: a line per event, and on a terminal a table of the current attempts below them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.common import COLOURS, can_move_cursor
from outlast.cli.refusal_hints import suggest_retry
from outlast.cli.safe_output import unfiltered, without_control
from outlast.cli.scheduler_outage import OutageMessages
from outlast.cli.training_progress import show_progress
from outlast.controller.controller import Pass
from outlast.domain import describe
from outlast.domain.model import EntryKind, JournalEntry, Outcome
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.text import counted, printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

#: With more runs than this, only the ends of runs are printed, and the number of runs by state.
MANY = 20
#: Seconds between two lines with the number of runs.
COUNT_EVERY = 5.0
#: Current attempts shown below the lines.
SHOWN = 10

_ENDS = (EntryKind.FINISHED, EntryKind.FAILED, EntryKind.CANCELLED)
#: Errors of files are printed as notes of the pass, also where runs are many.
_NOT_PRINTED = (EntryKind.QUEUED, EntryKind.SEEN, EntryKind.ACCEPTED, EntryKind.BLOCKED, EntryKind.HELD_BACK)


class Display:
    """Prints what the controller does. `directory` is the experiment's, as the user named it."""

    def __init__(self, experiment: Experiment, *, directory: Path | None = None, quiet: bool = False) -> None:
        self._experiment = experiment
        self._directory = directory
        self._quiet = quiet
        self._journal: Journal | None = None
        self._live: Live | None = None
        self._outage = OutageMessages()
        self._notes: frozenset[str] = frozenset()
        self._counted = 0.0
        #: Why runs are held back, as far as it was printed.
        self._held_back: set[str] = set()

    @contextmanager
    def showing(self, journal: Journal) -> Iterator[None]:
        """Show the current attempts, on a terminal, until the context ends."""
        self._journal = journal
        if self._quiet or not can_move_cursor():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=unfiltered(sys.stdout))
        # Refreshed explicitly: a refresh thread would read the records while the controller changes them.
        with Live(
            get_renderable=self._current_attempts, console=console, auto_refresh=False, transient=True
        ) as self._live:
            yield
        self._live = None

    def print_entries(self, entries: Sequence[JournalEntry]) -> None:
        """Print new journal entries; the controller's listener."""
        if self._quiet or self._journal is None:
            return
        many = sum(self._journal.counts().values()) > MANY
        self._print_held_back([entry for entry in entries if entry.kind is EntryKind.HELD_BACK])
        for entry in entries:
            if entry.kind in _NOT_PRINTED or (many and entry.kind not in _ENDS):
                continue
            attempt = self._journal.attempt(entry.token) if entry.token else None
            if attempt is not None and attempt.condemned and attempt.condemned[0] is Outcome.CANCELLED:
                continue  # its run is held back, and that has a line for all of them
            text = describe.of_entry(entry, attempt)
            if entry.kind is EntryKind.FAILED:
                text += self._hint(entry.run) + self._last_lines(entry.run)
            self._print(entry.at, entry.run, text, COLOURS.get(entry.kind.value))
        if many:
            self._print_counts()

    def _print_held_back(self, entries: Sequence[JournalEntry]) -> None:
        """Print one line for all runs that are held back for the same reason."""
        reasons = {entry.data.get("reason", ""): entry for entry in entries}
        for reason, last in reasons.items():
            number = counted(sum(entry.data.get("reason", "") == reason for entry in entries), "run")
            text = "%s held back: %s" % (number, printable(reason))
            if reason in self._held_back:
                text = "%s more held back" % number
            self._held_back.add(reason)
            self._print(last.at, "runs", text, "yellow")

    def after_pass(self, done: Pass) -> None:
        """Print the notes of a pass, and from time to time that the scheduler does not respond."""
        if self._quiet:
            return
        for note in done.notes:
            if note not in self._notes:
                self._print(time.time(), "note", note, "yellow")
        self._notes = frozenset(done.notes)
        message = self._outage.after_poll(self._explain_error(done.scheduler_error), time.time())
        if message:
            self._print(time.time(), "scheduler", message, "yellow")
        self.refresh()

    def print_journal_error(self, message: str) -> None:
        """Print that the journal cannot be written, or can be again; also if quiet, then to stderr."""
        if self._quiet:
            click.echo("journal: %s" % message, err=True)
        else:
            self._print(time.time(), "journal", message, "yellow")

    def _explain_error(self, error: str) -> str:
        """Return which of the scheduler's programs are missing on this machine; if none are, the error."""
        spec = self._journal.newest_spec() if error and self._journal is not None else None
        if spec is None:
            return error
        from outlast.schedulers.discovery import missing_programs

        return "; ".join(missing_programs(spec.profile.get("scheduler", spec.cluster))) or error

    def refresh(self) -> None:
        """Redraw the current attempts, on a terminal."""
        if self._live is not None:
            self._live.refresh()

    def _hint(self, name: str) -> str:
        assert self._journal is not None
        run = self._journal.run(name)
        hint = suggest_retry(self._journal, run, self._experiment.root, self._directory) if run else ""
        return "\n  %s" % hint if hint else ""

    def _last_lines(self, name: str) -> str:
        assert self._journal is not None
        run = self._journal.run(name)
        attempt = self._journal.attempt(run.last.token) if run and run.last else None
        tail = attempt.account.tail if attempt else ()
        if not tail or attempt is None:
            return ""
        lines = "\n".join("    | %s" % printable(line) for line in tail[-8:])
        return "\n  last lines of attempt %d (`outlast logs %s` prints all):\n%s" % (
            attempt.number,
            name,
            lines,
        )

    def _print_counts(self) -> None:
        if self._journal is None or time.monotonic() - self._counted < COUNT_EVERY:
            return
        self._counted = time.monotonic()
        counts = sorted(self._journal.counts().items())
        self._print(time.time(), "runs", ", ".join("%d %s" % (n, state) for state, n in counts), None)

    def _print(self, at: float, run: str, text: str, colour: str | None) -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(at))
        if self._live is None:
            click.echo("%s %s: %s" % (stamp, run, click.style(text, fg=colour)))
            return
        from rich.markup import escape

        run, text = without_control(run), without_control(text)
        body = "[%s]%s[/]" % (colour, escape(text)) if colour else escape(text)
        self._live.console.print("[dim]%s[/] [bold]%s[/]: %s" % (stamp, escape(run), body), highlight=False)

    def _current_attempts(self) -> Table | str:
        from rich.markup import escape
        from rich.table import Table

        if self._journal is None:
            return ""
        grid = Table.grid(padding=(0, 2))
        runs = [run for run in self._journal.live().values() if run.current]
        for run in runs[:SHOWN]:
            attempt = self._journal.current(run)
            if attempt is not None:
                grid.add_row(
                    "[cyan]●[/] %s" % escape(printable(run.name)),
                    "attempt %d" % attempt.number,
                    attempt.state.value,
                    escape(show_progress(self._experiment, attempt)),
                )
        if len(runs) > SHOWN:
            grid.add_row("… %d more" % (len(runs) - SHOWN))
        return grid
