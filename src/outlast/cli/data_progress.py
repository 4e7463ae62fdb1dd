"""The progress of a transfer on stderr: a bar on a terminal, elsewhere a line from time to time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING

import click

from outlast.cli.safe_output import unfiltered
from outlast.node.staging.fetch.receipt import FetchProgress
from outlast.text import printable
from outlast.units import show_duration, show_size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: Seconds between two lines where there is no terminal.
LINE_EVERY = 10.0
#: Bytes per second below which no remaining time is shown.
_LEAST_RATE = 1.0


class TransferDisplay:
    """Shows the progress of one fetch: pass `update` to the fetch; `latest` is the newest progress."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = printable(name)
        self._quiet = quiet
        self._live: Live | None = None
        self._last_line = time.monotonic()
        self._last_error = ""
        self.latest: FetchProgress | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the bar, on a terminal, until the context ends."""
        if self._quiet or not can_move_cursor():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        # Refreshed by `update`, which the fetching thread calls about five times a second.
        console = Console(file=unfiltered(sys.stderr))
        with Live(
            get_renderable=self._bar, console=console, auto_refresh=False, transient=True
        ) as self._live:
            yield
        self._live = None

    def update(self, progress: FetchProgress) -> None:
        """Show new progress."""
        self.latest = progress
        if self._live is not None:
            self._live.refresh()
        elif not self._quiet:
            self._print_lines(progress)

    def _print_lines(self, progress: FetchProgress) -> None:
        now = time.monotonic()
        if progress.error and progress.error != self._last_error:
            click.echo("%s: %s" % (self._name, "; ".join(describe_error(progress))), err=True)
        self._last_error = progress.error
        if now - self._last_line >= LINE_EVERY:
            self._last_line = now
            line = "; ".join((describe_progress(progress), *describe_error(progress)))
            click.echo("%s: %s" % (self._name, line), err=True)

    def _bar(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        latest = self.latest
        if latest is None:
            return Text("%s: connecting" % self._name)
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(
            latest.total or 1, latest.done if latest.total else 0, width=30, pulse=latest.total is None
        )
        grid.add_row(
            Text(self._name, "bold", no_wrap=True, overflow="ellipsis"),
            bar,
            Text(describe_progress(latest, with_source=False)),
        )
        below = (
            [Text("  from %s" % printable(latest.source), "dim", no_wrap=True, overflow="ellipsis")]
            if latest.source
            else []
        )
        parts = describe_error(latest)
        line = "; ".join(parts)
        assert self._live is not None
        fits = len(line) + 2 <= self._live.console.width
        below += [Text("  %s" % part, "yellow") for part in ([line] if fits else parts) if part]
        return Group(grid, *below)


def describe_progress(progress: FetchProgress, *, with_source: bool = True) -> str:
    """Return `1.2 GB of 3.4 GB (35 %), 57 MB/s, 39 s left, from cache.example.org`."""
    parts = [show_size(progress.done)]
    if progress.total:
        parts[0] += " of %s (%d %%)" % (show_size(progress.total), 100 * progress.done // progress.total)
    if progress.rate >= _LEAST_RATE:
        parts.append("%s/s" % show_size(progress.rate))
        if progress.total:
            parts.append("%s left" % show_duration(ceil((progress.total - progress.done) / progress.rate)))
    elif not progress.source:
        parts.append("waiting")
    if progress.connections > 1:
        parts.append("%d connections" % progress.connections)
    if with_source and progress.source:
        parts.append("from %s" % printable(progress.source))
    return ", ".join(parts)


def describe_error(progress: FetchProgress) -> list[str]:
    """Return the error and what happens next: `connection refused by …`, `next try in 12 s, …`.

    Empty while bytes arrive.
    """
    if not progress.error and progress.gives_up_in is None:
        return []
    error = printable(progress.error) or "no new bytes"
    steps = describe_next_steps(progress.next_try_in, progress.gives_up_in)
    if progress.error and progress.next_try_in is None:
        steps = "trying again, %s" % steps if steps else "trying again"
    return [error, steps] if steps else [error]


def describe_next_steps(next_try_in: float | None, gives_up_in: float | None) -> str:
    """Return `next try in 12 s, giving up in 9 min 40 s`, without the parts that are None or never happen."""
    parts = []
    if next_try_in is not None and (gives_up_in is None or next_try_in < gives_up_in):
        parts.append("next try in %s" % show_duration(ceil(next_try_in)))
    if gives_up_in is not None:
        parts.append("giving up in %s" % show_duration(ceil(gives_up_in)))
    return ", ".join(parts)


def can_move_cursor() -> bool:
    """Return True if standard error is a terminal on which lines can be overwritten."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
