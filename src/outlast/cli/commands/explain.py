"""`outlast explain`: what happened in each attempt of a run, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outlast.cli import resource_table, save_table
from outlast.cli.attempt_times import show_jobs, show_times
from outlast.cli.common import (
    add_colour,
    find_run,
    here_option,
    json_option,
    locate,
    open_journal,
    show_time,
    wrap_line,
    write_json,
)
from outlast.cli.refusal_hints import suggest_retry
from outlast.domain import ledger, resource_use
from outlast.domain.accounts import ItemAccount, LegAccount, sum_errors
from outlast.domain.model import Attempt, AttemptState, JournalEntry, Resources, Run, RunState
from outlast.domain.save_costs import SaveCosts
from outlast.journal.journal import Journal
from outlast.text import counted, printable
from outlast.units import show_duration, show_limit, show_size

#: Attempts shown when there are many; `--all` shows the rest.
SHOWN = 20


@click.command()
@click.argument("run", required=False)
@here_option
@click.option("--all", "everything", is_flag=True, help="Show all attempts, not only the last %d." % SHOWN)
@json_option
def command(run: str | None, directory: Path, everything: bool, as_json: bool) -> None:
    """Show what happened in each attempt of a run, what was decided, and why."""
    experiment, name = locate(run, directory)
    journal = open_journal(experiment)
    try:
        found = find_run(journal, name)
        attempts = list(journal.attempts(found.name))
        if as_json:
            write_json(_as_json(journal, found, attempts))
        else:
            click.echo(_text(journal, found, attempts, everything, experiment.root, directory))
    finally:
        journal.close()


def _as_json(journal: Journal, run: Run, attempts: list[Attempt]) -> dict[str, Any]:
    bookings = {booking.number: booking for booking in ledger.book(run, attempts)}
    resources = journal.spec(run.spec).resources
    uses = {
        attempt.number: resource_use.of_attempt(attempt, resources, bookings[attempt.number].slot)
        for attempt in attempts
        if attempt.number in bookings
    }
    return {
        "run": run.name,
        "state": run.state.value,
        "reason": run.reason,
        "params": dict(run.params),
        "saving": save_table.as_json(list(bookings.values())),
        "resources": resource_use.total(uses.values()).to_dict(),
        "attempts": [
            {
                **vars(attempt),
                "state": attempt.state.value,
                "resources": uses[attempt.number].to_dict() if attempt.number in uses else None,
            }
            for attempt in attempts
        ],
        "entries": [
            {"at": row.entry.at, "kind": row.entry.kind.value, "token": row.entry.token, **row.entry.data}
            for row in journal.entries(run.name)
        ],
    }


def _text(
    journal: Journal, run: Run, attempts: list[Attempt], everything: bool, root: Path, directory: Path
) -> str:
    spec = journal.spec(run.spec)
    shows_reason = run.state.over or run.state is RunState.HELD_BACK
    why = " — %s" % printable(run.reason) if shows_reason else ""
    lines = [wrap_line("%s: %s%s" % (run.name, add_colour(run.state.value), why), 2)]
    lines.append("  submitted %s to %s: %s" % (show_time(run.added), spec.cluster, spec.command))
    if run.params:
        lines.append("  with " + ", ".join("%s=%s" % item for item in run.params.items()))
    bookings = {booking.number: booking for booking in ledger.book(run, attempts)}
    entries: dict[str | None, list[JournalEntry]] = {}
    for row in journal.entries(run.name):
        entries.setdefault(row.entry.token, []).append(row.entry)
    shown = attempts if everything else attempts[-SHOWN:]
    if len(shown) < len(attempts):
        left_out = counted(len(attempts) - len(shown), "earlier attempt")
        lines += ["", "… %s not shown; --all shows them" % left_out]
    for attempt in shown:
        own_entries = entries.get(attempt.token, [])
        lines += ["", *_attempt_lines(attempt, own_entries, bookings.get(attempt.number), spec.resources)]
    hint = suggest_retry(journal, run, root, directory)
    if hint:
        lines += ["", hint]
    if not shows_reason and run.last is not None and run.current is None:
        lines += ["", "between attempts: %s" % run.last.detail]
    return "\n".join(lines)


def _attempt_lines(
    attempt: Attempt, entries: list[JournalEntry], booking: ledger.Booking | None, resources: Resources
) -> list[str]:
    ended = attempt.state is AttemptState.ENDED and attempt.outcome is not None
    word = attempt.outcome.value if ended and attempt.outcome else attempt.state.value
    lines = ["attempt %d: %s" % (attempt.number, add_colour(word))]
    lines.append("  why        %s" % attempt.reason)
    requested = _show_request(attempt)
    if requested:
        lines.append("  requested  %s" % requested)
    if attempt.avoid:
        lines.append("  avoids     %s" % ", ".join(attempt.avoid))
    if attempt.job or attempt.host:
        lines.append("  where      %s" % show_jobs(attempt, entries))
    if attempt.started:
        lines.append("  when       %s" % show_times(attempt, entries))
    if attempt.waits and not ended:
        lines.append("  waiting    %s" % printable(attempt.waits))
    if attempt.blocked:
        since = show_time(attempt.blocked_since)
        lines.append("  blocked    since %s: %s" % (since, printable(attempt.blocked)))
    account = attempt.account
    for leg in account.earlier:
        lines.append("  earlier    %s" % _show_leg(leg))
    for item in account.items:
        lines.append("  data       %s" % printable(_show_item(item)))
    if account.loaded:
        resumed = account.resumed
        lines.append(
            "  started    from the beginning" if resumed is None else "  resumed    from step %d" % resumed
        )
    for note in account.notes:
        lines.append("  note       %s" % printable(note))
    if ended:
        lines.append("  ended      %s" % printable(attempt.detail))
    saves = save_table.attempt_lines(account.saved_step, booking.saving if booking else SaveCosts())
    lines += ["  %-10s %s" % line for line in saves]
    if booking and booking.uses:
        parts = ("%s %s" % (show_duration(seconds), use.value) for use, seconds in booking.uses.items())
        lines.append("  time       %s: %s" % (show_duration(booking.slot), ", ".join(parts)))
    if booking:
        used = resource_table.show_attempt(resource_use.of_attempt(attempt, resources, booking.slot))
        lines += ["  used       %s" % used] if used else []
    lines = [wrap_line(line, 13) for line in lines]
    if ended and account.tail and word in ("crashed", "wrong-output", "out-of-memory", "out-of-disk"):
        lines += ["  | %s" % printable(line) for line in account.tail[-12:]]
    return lines


def _show_request(attempt: Attempt) -> str:
    """Return of what it requested more than `resources` in params.yaml; empty if of nothing."""
    parts = ["%s of memory" % show_size(attempt.memory)] if attempt.memory else []
    parts += ["%s of disk" % show_size(attempt.disk)] if attempt.disk else []
    parts += [show_limit(attempt.time)] if attempt.time else []
    return "%s, more than resources in params.yaml" % " and ".join(parts) if parts else ""


def _show_item(item: ItemAccount) -> str:
    """Return one line about an item of data: size, time, sources, and the errors on the way."""
    if item.found:
        text = "%s was already there" % item.name
    elif item.carried and not item.bytes:
        text = "%s was transferred with the job" % item.name
    else:
        size = show_size(item.bytes) + " " if item.bytes else ""
        how = "in" if item.arrived else "not complete after"
        seconds = item.seconds if item.carried else item.waited
        text = "%s: %s%s %s" % (item.name, size, how, show_duration(seconds))
        if item.sources:
            text += " from %s" % ", ".join(item.sources)
        if item.carried:
            text += ", before the job started"
        if item.vouched == "nobody":
            text += "; not verified: no digest was known"
    errors = [
        "%s %d× (%s)" % (kind, total.count, show_duration(total.seconds))
        for kind, total in sum_errors([item]).items()
    ]
    return text + ("; %s" % ", ".join(errors) if errors else "")


def _show_leg(leg: LegAccount) -> str:
    saved = ", saved step %d" % leg.saved_step if leg.saved_step is not None else ""
    ended = leg.outcome.value if leg.outcome is not None else "ended without logging an outcome"
    return "%s on %s: %s%s" % (show_duration(leg.logged), leg.host or "an unnamed host", ended, saved)
