"""`outlast chain`: everything is sent at once, and nothing has to keep running."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.common import (
    LONGEST_PASS,
    cluster_option,
    directory_argument,
    experiment_at,
    json_option,
    some,
    where,
    write_json,
)
from outlast.cli.submit import count, hand_over, tell
from outlast.errors import BadInput
from outlast.model import Attempt, Spec, attempts_needed
from outlast.submission import prepare

if TYPE_CHECKING:
    from outlast.journal import Journal

#: Beyond what is needed, one job in this many is sent in case some are lost; the rest ends at once.
SPARE = 5
MOST_JOBS = 1000


@click.command()
@directory_argument
@click.option("-n", "--jobs", type=click.IntRange(1, MOST_JOBS), help="Jobs for each run.")
@cluster_option
@json_option
def command(directory: Path, jobs: int | None, cluster: str | None, as_json: bool) -> None:
    """Send each run as a chain of jobs, for login nodes where nothing may keep running.

    Each job waits for the end of the one before and goes on from its checkpoint. When the training finishes,
    the rest are cancelled or end within seconds. Without -n the number is worked out from the time that
    params.yaml asks for and the longest that the cluster lets a job run.
    """
    from outlast.session import control
    from outlast.spec import read

    experiment = experiment_at(directory)
    spec = prepare(experiment, read(experiment.root, cluster), keep=False)
    if spec.profile.get("scheduler", spec.cluster) == "local":
        raise BadInput("chain is for clusters: on this machine `outlast run%s` does it" % where(directory))
    number = jobs if jobs is not None else _number(spec)
    submitted = hand_over(experiment, cluster)
    with control(experiment, "chain") as session:
        before = session.journal.last_entry()
        done = session.step(budget=LONGEST_PASS, jobs=number)
        sent = _sent(session.journal, before)
    if as_json:
        write_json(
            {
                "jobs": number,
                "chains": {attempt.run: attempt.job for attempt in sent},
                "trouble": done.trouble or None,
            }
        )
        return
    tell(submitted)
    if done.trouble:
        raise BadInput("the scheduler did not answer, nothing was sent: %s; try again" % done.trouble)
    if not sent:
        click.echo("nothing to send: no run waits for an attempt")
        return
    names = [attempt.run for attempt in sent]
    click.echo(
        "sent %s as %d jobs each, every one waiting for the one before: %s"
        % (count(len(names)), number, some(names))
    )
    click.echo(
        "nothing has to keep running; `outlast tick%s` brings `status`, `explain` and results/ up to date"
        % where(directory)
    )


def _number(spec: Spec) -> int:
    if spec.profile.get("longest") is None:
        raise BadInput(
            "how many jobs? Say it with -n, or say how long cluster %s lets a job run: write `longest: 24h` "
            "into its profile in clusters.yaml" % spec.cluster
        )
    needed = attempts_needed(spec)
    return min(MOST_JOBS, needed + max(1, needed // SPARE))


def _sent(journal: Journal, before: int) -> list[Attempt]:
    tokens = {row.entry.token for row in journal.entries(after=before) if row.entry.token}
    found = [journal.attempt(token) for token in sorted(tokens)]
    return [attempt for attempt in found if attempt is not None and attempt.outcome is None]
