"""`outlast report`: where the time of the attempts went."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import click

from outlast.cli import resource_table, save_table
from outlast.cli.common import (
    add_colour,
    directory_argument,
    experiment_at,
    json_option,
    on_terminal,
    open_journal,
    table,
    terminal_width,
    write_json,
)
from outlast.domain import resource_use
from outlast.domain.accounts import ErrorTotal, sum_errors
from outlast.domain.ledger import MEANING, Booking, Use, book, total
from outlast.domain.model import Attempt, Spec
from outlast.domain.resource_use import ResourceUse
from outlast.journal.journal import Journal
from outlast.text import counted
from outlast.units import show_duration, show_size

#: Runs listed one by one; of more, only the sum is shown.
SHOWN = 30
#: Width of a bar of 100 %, and on a narrow terminal.
BAR = 40
NARROW_BAR = 10
#: Columns left of the bars, with the gaps.
NUMBERS = 36
#: The least share that gets a bar: one that is not rounded to 0.0 %.
VISIBLE = 0.0005


@click.command()
@directory_argument
@json_option
@click.option("--all", "everything", is_flag=True, help="List all runs.")
def command(directory: Path, as_json: bool, everything: bool) -> None:
    """Show where the time went: useful work and each kind of waste, per run and in total."""
    experiment = experiment_at(directory)
    journal = open_journal(experiment)
    try:
        with _without_garbage_collection():
            booked = list(_book(journal))
        running = sum(
            attempt.started is not None and attempt.ended is None for attempt in _current_attempts(journal)
        )
    finally:
        journal.close()
    if as_json:
        with _without_garbage_collection():
            write_json(_as_json(booked))
        return
    click.echo(text([one.booking for one in booked], [one.use for one in booked], everything))
    if running:
        message = "is running; its time is counted when it ends"
        if running > 1:
            message = "are running; their time is counted when they end"
        click.echo("%s %s" % (counted(running, "attempt"), message))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Search for no cyclic garbage: all records stay in memory, and have no cycles; it takes a fifth more."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Booked(NamedTuple):
    attempt: Attempt
    cluster: str
    booking: Booking
    use: ResourceUse


def _book(journal: Journal) -> Iterator[_Booked]:
    runs = {run.name: run for run in journal.runs()}
    specs: dict[int, Spec] = {}
    for name, group in groupby(journal.attempts(), key=lambda attempt: attempt.run):
        run, attempts = runs[name], {attempt.number: attempt for attempt in group}
        if run.spec not in specs:
            specs[run.spec] = journal.spec(run.spec)
        spec = specs[run.spec]
        for booking in book(run, list(attempts.values())):
            attempt = attempts[booking.number]
            use = resource_use.of_attempt(attempt, spec.resources, booking.slot)
            yield _Booked(attempt, spec.cluster, booking, use)


def _current_attempts(journal: Journal) -> Any:
    return (attempt for run in journal.live().values() if (attempt := journal.current(run)))


def _as_json(booked: list[_Booked]) -> dict[str, Any]:
    bookings = [one.booking for one in booked]
    return {
        "slot": sum(booking.slot for booking in bookings),
        "uses": {use.value: seconds for use, seconds in total(bookings).items()},
        "resources": resource_use.total(one.use for one in booked).to_dict(),
        "saving": save_table.as_json(bookings),
        "troubles": {kind: cost.to_dict() for kind, cost in _errors(bookings).items()},
        "attempts": [
            {
                "run": booking.run,
                "attempt": booking.number,
                "cluster": cluster,
                "job": attempt.job,
                "host": booking.host,
                "queued": attempt.queued,
                "started": attempt.started,
                "ended": attempt.ended,
                "cpus": attempt.cpus,
                "gpus": attempt.gpus,
                "step": attempt.account.saved_step,
                "outcome": booking.outcome.value if booking.outcome else None,
                "slot": booking.slot,
                "uses": {use.value: seconds for use, seconds in booking.uses.items()},
                "resources": use.to_dict(),
                "saving": save_table.as_json([booking]),
                "data": [item.to_dict() for item in booking.data],
            }
            for attempt, cluster, booking, use in booked
        ],
    }


def text(bookings: list[Booking], uses: Sequence[ResourceUse] = (), everything: bool = False) -> str:
    """Return the whole report; `uses` are the resources of the bookings; `everything` lists all runs."""
    sums, slot = total(bookings), sum(booking.slot for booking in bookings)
    if not slot:
        return "no time to report yet: no attempt has ended"
    use = resource_use.total(uses)
    parts = [_total_table(sums, slot, use.queue)]
    if uses:
        parts.append(resource_table.as_table(use))
    runs = {name: list(group) for name, group in groupby(bookings, key=lambda booking: booking.run)}
    if len(runs) > 1 and (everything or len(runs) <= SHOWN):
        parts.append(_table_by_run(runs, sums))
    elif len(runs) > 1:
        parts.append("%d runs; --all lists them" % len(runs))
    shown = runs if everything or len(runs) <= SHOWN else {"all runs": bookings}
    saved = save_table.as_table(shown)
    if saved:
        parts.append(saved)
    errors = _data_errors_table(bookings)
    if errors:
        parts.append(errors)
    hosts = _table_by_host(bookings)
    if hosts:
        parts.append(hosts)
    return "\n\n".join(parts)


def _total_table(sums: dict[Use, float], slot: float, queue: float) -> str:
    shown = {use: seconds for use, seconds in sums.items() if seconds > 0 or use is Use.USEFUL}
    longest_bar = _bar_width(max(len(MEANING[use]) for use in shown))
    rows = []
    for use, seconds in shown.items():
        share = seconds / slot
        bar = "█" * round(share * longest_bar) or ("▏" if share >= VISIBLE else "")
        rows.append(
            (add_colour(use.value), show_duration(seconds), "%.1f %%" % (100 * share), bar, MEANING[use])
        )
    rows.append(
        ("slot time", show_duration(slot), "100.0 %", "", "time that the scheduler allocated to all attempts")
    )
    if queue >= 1:
        rows.append(
            (
                "queue time",
                show_duration(queue),
                "",
                "",
                "before and between, in which jobs waited for a slot",
            )
        )
    return table(("USE", "TIME", "SHARE", "", "MEANING"), rows, right=(1, 2), most_lines=9)


def _bar_width(longest_text: int) -> int:
    """Return the width of a bar of 100 %: on a narrow terminal, the explanations come first."""
    if not on_terminal():
        return BAR
    return max(NARROW_BAR, min(BAR, terminal_width() - NUMBERS - longest_text))


def _table_by_run(runs: dict[str, list[Booking]], sums: dict[Use, float]) -> str:
    columns = [use for use in Use if sums[use] > 0]
    rows = []
    for name, bookings in runs.items():
        uses = total(bookings)
        slot = sum(booking.slot for booking in bookings)
        cells = [show_duration(uses[use]) if uses[use] else "-" for use in columns]
        rows.append((name, str(len(bookings)), show_duration(slot), *cells))
    head = ("RUN", "ATTEMPTS", "SLOT", *(use.value.upper() for use in columns))
    return "\n\n".join(
        table([head[i] for i in group], [[row[i] for i in group] for row in rows], right=range(1, len(group)))
        for group in _fitting_columns([head, *rows])
    )


def _fitting_columns(rows: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return groups of columns that fit the terminal; each begins with column 0. Elsewhere, one group."""
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    groups = [[0]]
    for index in range(1, len(widths)):
        used = sum(widths[i] for i in (*groups[-1], index)) - 2
        if on_terminal() and used > terminal_width() and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    return groups


def _errors(bookings: list[Booking]) -> dict[str, ErrorTotal]:
    return sum_errors(item for booking in bookings for item in booking.data)


def _data_errors_table(bookings: list[Booking]) -> str:
    """Return the errors in fetching data and what they cost; empty if there were none."""
    rows = [
        (kind, "%d" % cost.count, show_duration(cost.seconds), show_size(cost.bytes))
        for kind, cost in _errors(bookings).items()
    ]
    return table(("DATA ERROR", "COUNT", "TIME", "FETCHED AGAIN"), rows, right=(1, 2, 3)) if rows else ""


def _table_by_host(bookings: list[Booking]) -> str:
    """Return the time and outcomes by host or site; empty if there is only one."""
    hosts: dict[str, list[Booking]] = {}
    for booking in bookings:
        if booking.host:
            hosts.setdefault(booking.host, []).append(booking)
    if len(hosts) < 2:
        return ""
    rows = []
    for host, here in sorted(hosts.items()):
        slot, useful = sum(b.slot for b in here), total(here)[Use.USEFUL]
        outcomes = Counter(b.outcome.value for b in here if b.outcome)
        rows.append(
            (
                host,
                str(len(here)),
                show_duration(slot),
                "%.0f %%" % (100 * useful / slot if slot else 0),
                ", ".join("%d %s" % (number, outcome) for outcome, number in sorted(outcomes.items())),
            )
        )
    return table(("HOST", "ATTEMPTS", "SLOT", "USEFUL", "OUTCOMES"), rows, right=(1, 2, 3), most_lines=9)
