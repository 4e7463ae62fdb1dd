"""What `up` shows: a line for everything that happens, and on a terminal what is under way below them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import COLOURS, on_terminal
from outlast.cli.refusal_hints import advice
from outlast.cli.scheduler_outage import Silence
from outlast.controller.controller import Pass
from outlast.domain import describe
from outlast.domain.model import Attempt, EntryKind, JournalEntry
from outlast.exchange import attempt_log
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.text import printable
from outlast.units import LONGEST, show_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

#: With more runs than this only the ends of runs are told, and a count now and then.
MANY = 20
COUNT_EVERY = 5.0
#: How many runs that are under way are shown below the lines.
SHOWN = 10

_ENDS = (EntryKind.FINISHED, EntryKind.FAILED, EntryKind.CANCELLED)
_MACHINE = (EntryKind.QUEUED, EntryKind.SEEN, EntryKind.ACCEPTED)


class Display:
    def __init__(self, experiment: Experiment, *, directory: Path | None = None, quiet: bool = False) -> None:
        """`directory`: the experiment's, as the user named it."""
        self._experiment = experiment
        self._directory = directory
        self._quiet = quiet
        self._journal: Journal | None = None
        self._live: Live | None = None
        self._silence = Silence()
        self._notes: frozenset[str] = frozenset()
        self._counted = 0.0

    @contextmanager
    def showing(self, journal: Journal) -> Iterator[None]:
        self._journal = journal
        if self._quiet or not on_terminal():
            yield
            return
        from rich.live import Live

        # Refreshed by hand: a thread of its own would read the records while the controller changes them.
        with Live(get_renderable=self._under_way, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def entries(self, entries: Sequence[JournalEntry]) -> None:
        """The controller's listener."""
        if self._quiet or self._journal is None:
            return
        many = sum(self._journal.counts().values()) > MANY
        for entry in entries:
            if entry.kind in _MACHINE or (many and entry.kind not in _ENDS):
                continue
            attempt = self._journal.attempt(entry.token) if entry.token else None
            text = describe.of_entry(entry, attempt)
            if entry.kind is EntryKind.FAILED:
                text += self._what_to_do(entry.run) + self._last_words(entry.run)
            self._say(entry.at, entry.run, text, COLOURS.get(entry.kind.value))
        if many:
            self._count()

    def passed(self, done: Pass) -> None:
        """After each pass: trouble with the scheduler is said again from time to time, and its end too."""
        if self._quiet:
            return
        for note in done.notes:
            if note not in self._notes:
                self._say(time.time(), "note", note, "yellow")
        self._notes = frozenset(done.notes)
        told = self._silence.after(self._plainly(done.trouble), time.time())
        if told:
            self._say(time.time(), "scheduler", told, "yellow")
        self.refresh()

    def _plainly(self, trouble: str) -> str:
        """Where the scheduler's programs are not here, that says more than what came of calling one."""
        spec = self._journal.newest_spec() if trouble and self._journal is not None else None
        if spec is None:
            return trouble
        from outlast.schedulers.discovery import missing_programs

        return "; ".join(missing_programs(spec.profile.get("scheduler", spec.cluster))) or trouble

    def refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _what_to_do(self, name: str) -> str:
        assert self._journal is not None
        run = self._journal.run(name)
        hint = advice(self._journal, run, self._experiment.root, self._directory) if run else ""
        return "\n  %s" % hint if hint else ""

    def _last_words(self, name: str) -> str:
        assert self._journal is not None
        run = self._journal.run(name)
        attempt = self._journal.attempt(run.last.token) if run and run.last else None
        tail = attempt.account.tail if attempt else ()
        if not tail or attempt is None:
            return ""
        lines = "\n".join("    | %s" % printable(line) for line in tail[-8:])
        return "\n  the last lines of attempt %d (`outlast logs %s` has them all):\n%s" % (
            attempt.number,
            name,
            lines,
        )

    def _count(self) -> None:
        if self._journal is None or time.monotonic() - self._counted < COUNT_EVERY:
            return
        self._counted = time.monotonic()
        counts = sorted(self._journal.counts().items())
        self._say(time.time(), "runs", ", ".join("%d %s" % (n, state) for state, n in counts), None)

    def _say(self, at: float, run: str, text: str, colour: str | None) -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(at))
        if self._live is None:
            click.echo("%s %s: %s" % (stamp, run, click.style(text, fg=colour)))
            return
        from rich.markup import escape

        body = "[%s]%s[/]" % (colour, escape(text)) if colour else escape(text)
        self._live.console.print("[dim]%s[/] [bold]%s[/]: %s" % (stamp, escape(run), body), highlight=False)

    def _under_way(self) -> Table | str:
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
                    "[cyan]●[/] %s" % run.name,
                    "attempt %d" % attempt.number,
                    attempt.state.value,
                    escape(progress_of(self._experiment, attempt)),
                )
        if len(runs) > SHOWN:
            grid.add_row("… %d more" % (len(runs) - SHOWN))
        return grid


def progress_of(experiment: Experiment, attempt: Attempt) -> str:
    """How far a training says it is, such as `step 12 of 30 (40 %) loss=0.21`."""
    exchange = experiment.exchange_of(attempt)
    said = attempt_log.progress_of(exchange)
    if said is None:
        fetching = attempt_log.fetching_of(exchange)
        return printable(_fetching(fetching)) if fetching else ""
    step, total, metrics = said.get("step"), said.get("total"), said.get("metrics")
    text = "step %s" % step
    if isinstance(step, (int, float)) and isinstance(total, (int, float)) and total > 0:
        text += " of %s (%d %%)" % (total, 100 * step // total)
    if isinstance(metrics, dict):
        for name, value in list(metrics.items())[:4]:
            text += " %s=%s" % (name, "%.4g" % value if isinstance(value, float) else value)
    return printable(text)


def _fetching(said: Mapping[str, Any]) -> str:
    """`fetches train.tar: 45 % of 150 GB, 57 MB/s from cache.example.org`."""
    if said.get("waits_for"):
        return "waits for %s, which is fetched by %s" % (said.get("name"), said["waits_for"])
    text = "fetches %s: " % said.get("name")
    done, total, rate = (said.get(key) for key in ("done", "total", "rate"))
    if isinstance(done, int) and isinstance(total, int) and total > 0:
        text += "%d %% of %s" % (100 * done // total, show_size(total))
    elif isinstance(done, int):
        text += show_size(done)
    if said.get("trouble"):
        from outlast.cli.data_progress import next_steps

        steps = next_steps(_left(said.get("next_try_at")), _left(said.get("gives_up_at")))
        return "; ".join(filter(None, (text, str(said["trouble"]), steps)))
    speed = ", %s/s" % show_size(rate) if isinstance(rate, int) and rate > 0 else ""
    return text + speed + (" from %s" % said["source"] if said.get("source") else "")


def _left(at: object) -> float | None:
    """Return the seconds until then; None for what is over or no time."""
    left = at - time.time() if isinstance(at, float) else 0.0
    return left if 0 < left < LONGEST else None
