"""`outlast tick`."""

from __future__ import annotations

from pathlib import Path

import click

from outlast.cli.common import directory_argument, experiment_at, json_option, write_json

#: After this long no further jobs are submitted; the next tick goes on.
BUDGET = 3.0
#: How long one question to the scheduler may take: a busy one needs more than a few seconds.
LONGEST_QUESTION = 20.0


@click.command()
@directory_argument
@json_option
def command(directory: Path, as_json: bool) -> None:
    """One look at the experiment and what follows from it; a few seconds at most, for cron.

    A line such as `* * * * * outlast tick DIR` does what `outlast up DIR` does, a minute at a time.
    """
    from outlast.controller.supervisor import control

    experiment = experiment_at(directory)
    with control(experiment, "tick", timeout=LONGEST_QUESTION) as session:
        done = session.step(budget=BUDGET)
        counts = session.journal.counts()
    if as_json:
        write_json({"runs": counts, "entries": done.entries, "trouble": done.trouble or None,
                    "put_off": done.put_off, "notes": done.notes})  # fmt: skip
        return
    for note in done.notes:
        click.echo("note: %s" % note, err=True)
    if done.trouble:
        text = "the scheduler did not answer: %s; nothing is lost, and the next tick asks again"
        click.echo(text % done.trouble, err=True)
    click.echo(", ".join("%d %s" % (number, state) for state, number in sorted(counts.items())) or "no runs")
