"""`outlast explain`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from outlast import ledger
from outlast.cli.common import (
    clock,
    find_run,
    here_option,
    json_option,
    locate,
    open_journal,
    paint,
    write_json,
)
from outlast.journal import Journal
from outlast.model import Attempt, AttemptState, Run
from outlast.sentences import printable
from outlast.spec.units import show_duration


@click.command()
@click.argument("run", required=False)
@here_option
@json_option
def command(run: str | None, directory: Path, as_json: bool) -> None:
    """Attempt by attempt: what happened, what was decided, why."""
    experiment, name = locate(run, directory)
    journal = open_journal(experiment)
    try:
        found = find_run(journal, name)
        attempts = list(journal.attempts(found.name))
        if as_json:
            write_json(_facts(journal, found, attempts))
        else:
            click.echo(_text(journal, found, attempts))
    finally:
        journal.close()


def _facts(journal: Journal, run: Run, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "run": run.name,
        "state": run.state.value,
        "reason": run.reason,
        "params": dict(run.params),
        "attempts": [{**vars(attempt), "state": attempt.state.value} for attempt in attempts],
        "entries": [
            {"at": row.entry.at, "kind": row.entry.kind.value, "token": row.entry.token, **row.entry.data}
            for row in journal.entries(run.name)
        ],
    }


def _text(journal: Journal, run: Run, attempts: list[Attempt]) -> str:
    spec = journal.spec(run.spec)
    lines = [
        "%s: %s%s"
        % (run.name, paint(run.state.value), " — %s" % printable(run.reason) if run.state.over else "")
    ]
    lines.append("  submitted %s to %s: %s" % (clock(run.added), spec.cluster, spec.command))
    if run.params:
        lines.append("  with " + ", ".join("%s=%s" % item for item in run.params.items()))
    bookings = {booking.number: booking for booking in ledger.book(run, attempts)}
    for attempt in attempts:
        lines += ["", *_attempt(attempt, bookings.get(attempt.number))]
    if not run.state.over and run.last is not None and run.current is None:
        lines += ["", "between attempts: %s" % run.last.detail]
    return "\n".join(lines)


def _attempt(attempt: Attempt, booking: ledger.Booking | None) -> list[str]:
    ended = attempt.state is AttemptState.ENDED and attempt.outcome is not None
    word = attempt.outcome.value if ended and attempt.outcome else attempt.state.value
    lines = ["attempt %d: %s" % (attempt.number, paint(word))]
    lines.append("  why        %s" % attempt.reason)
    if attempt.avoid:
        lines.append("  not on     %s" % ", ".join(attempt.avoid))
    if attempt.job or attempt.host:
        lines.append("  where      job %s%s" % (attempt.job, " on %s" % attempt.host if attempt.host else ""))
    if attempt.started:
        until = " to %s" % clock(attempt.ended) if ended else ""
        lines.append("  when       %s%s%s" % (clock(attempt.started), until, _waited(attempt)))
    if attempt.waits and not ended:
        lines.append("  waiting    %s" % printable(attempt.waits))
    account = attempt.account
    for leg in account.get("earlier", ()):
        lines.append("  before     %s" % _leg(leg))
    if account.get("loaded"):
        resumed = account.get("resumed")
        lines.append("  went on    %s" % ("from the start" if resumed is None else "from step %d" % resumed))
    for note in account.get("notes", ()):
        lines.append("  note       %s" % printable(note))
    if ended:
        lines.append("  ended      %s" % printable(attempt.detail))
    saves = account.get("saves", ())
    if saves and saves[-1][1] is not None:
        lines.append("  saved      step %d" % saves[-1][1])
    if booking and booking.uses:
        parts = ("%s %s" % (show_duration(seconds), use.value) for use, seconds in booking.uses.items())
        lines.append("  time       %s: %s" % (show_duration(booking.slot), ", ".join(parts)))
    if ended and account.get("tail") and word in ("crashed", "wrong-output", "out-of-memory", "out-of-disk"):
        lines += ["  | %s" % printable(line) for line in account["tail"][-12:]]
    return lines


def _leg(leg: Mapping[str, Any]) -> str:
    """One of the earlier starts of the attempt's job."""
    seconds = sum(float(seconds) for _, seconds in leg.get("spans", ()))
    saves = leg.get("saves", ())
    saved = ", step %d is saved" % saves[-1][1] if saves and saves[-1][1] is not None else ""
    ended = leg.get("outcome", "ended without a word")
    return "%s on %s: %s%s" % (show_duration(seconds), leg.get("host", "a host without a name"), ended, saved)


def _waited(attempt: Attempt) -> str:
    if attempt.queued is None or attempt.started is None or attempt.started - attempt.queued < 1:
        return ""
    return ", after %s in the queue" % show_duration(attempt.started - attempt.queued)
