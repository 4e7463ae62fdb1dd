"""A transfer as people watch it: a bar on a terminal, a line now and then elsewhere. All of it on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING

import click

from outlast.node.staging.fetch.receipt import FetchProgress
from outlast.text import printable
from outlast.units import show_duration, show_size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: Seconds between two lines where there is no terminal.
LINE_EVERY = 10.0
#: Bytes per second below which no time is promised.
_LEAST_RATE = 1.0


class TransferDisplay:
    """`told` is the newest progress; hand `tell` to the fetch."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = printable(name)
        self._quiet = quiet
        self._live: Live | None = None
        self._said = time.monotonic()
        self._trouble = ""
        self.told: FetchProgress | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        if self._quiet or not on_terminal():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        # Refreshed by `tell`, which comes about five times a second, from the thread that fetches.
        with Live(
            get_renderable=self._bar, console=Console(stderr=True), auto_refresh=False, transient=True
        ) as self._live:
            yield
        self._live = None

    def tell(self, progress: FetchProgress) -> None:
        self.told = progress
        if self._live is not None:
            self._live.refresh()
        elif not self._quiet:
            self._lines(progress)

    def _lines(self, progress: FetchProgress) -> None:
        now = time.monotonic()
        if progress.error and progress.error != self._trouble:
            click.echo("%s: %s" % (self._name, "; ".join(state_of_trouble(progress))), err=True)
        self._trouble = progress.error
        if now - self._said >= LINE_EVERY:
            self._said = now
            line = "; ".join((in_words(progress), *state_of_trouble(progress)))
            click.echo("%s: %s" % (self._name, line), err=True)

    def _bar(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        told = self.told
        if told is None:
            return Text("%s: asking" % self._name)
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(told.total or 1, told.done if told.total else 0, width=30, pulse=told.total is None)
        grid.add_row(
            Text(self._name, "bold", no_wrap=True, overflow="ellipsis"),
            bar,
            Text(in_words(told, with_source=False)),
        )
        below = (
            [Text("  from %s" % printable(told.source), "dim", no_wrap=True, overflow="ellipsis")]
            if told.source
            else []
        )
        state = state_of_trouble(told)
        line = "; ".join(state)
        assert self._live is not None
        fits = len(line) + 2 <= self._live.console.width
        below += [Text("  %s" % part, "yellow") for part in ([line] if fits else state) if part]
        return Group(grid, *below)


def in_words(progress: FetchProgress, *, with_source: bool = True) -> str:
    """`1.2 of 3.4 GB (35 %), 57 MB/s, 39 s left, from cache.example.org`."""
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


def state_of_trouble(progress: FetchProgress) -> list[str]:
    """Return what is wrong, and what happens next: `connection refused by …`, `next try in 12 s, …`.

    Empty while bytes come.
    """
    if not progress.error and progress.gives_up_in is None:
        return []
    trouble = printable(progress.error) or "no new bytes"
    steps = next_steps(progress.next_try_in, progress.gives_up_in)
    if progress.error and progress.next_try_in is None:
        steps = "trying again, %s" % steps if steps else "trying again"
    return [trouble, steps] if steps else [trouble]


def next_steps(next_try_in: float | None, gives_up_in: float | None) -> str:
    """Return `next try in 12 s, giving up in 9 min 40 s`, without what is None or never comes."""
    parts = []
    if next_try_in is not None and (gives_up_in is None or next_try_in < gives_up_in):
        parts.append("next try in %s" % show_duration(ceil(next_try_in)))
    if gives_up_in is not None:
        parts.append("giving up in %s" % show_duration(ceil(gives_up_in)))
    return ", ".join(parts)


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
