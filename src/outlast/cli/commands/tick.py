"""`outlast tick`: one pass over the experiment, for cron."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.common import directory_argument, experiment_at, json_option, write_json

#: Seconds after which no further jobs are submitted; the next tick continues.
BUDGET = 3.0
#: Timeout of one call to the scheduler in seconds: a busy one needs more than a few.
CALL_TIMEOUT = 20.0


@click.command()
@directory_argument
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Check once and act on what changed (for cron). Takes a few seconds at most.

    The crontab line `* * * * * outlast tick DIR` replaces `outlast up DIR`, with one check per minute.
    """
    from outlast.controller.supervisor import control

    experiment = experiment_at(directory)
    with control(experiment, "tick", timeout=CALL_TIMEOUT) as session:
        done = session.step(budget=BUDGET)
        counts = session.journal.counts()
    if as_json:
        write_json({"runs": counts, "entries": done.entries, "trouble": done.scheduler_error or None,
                    "put_off": len(done.put_off), "notes": done.notes})  # fmt: skip
        return
    for note in done.notes:
        click.echo("note: %s" % note, err=True)
    if done.scheduler_error:
        text = "the scheduler did not respond: %s; nothing is lost, and the next tick tries again"
        click.echo(text % done.scheduler_error, err=True)
    click.echo(", ".join("%d %s" % (number, state) for state, number in sorted(counts.items())) or "no runs")
