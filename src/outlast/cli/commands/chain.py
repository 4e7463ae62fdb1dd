"""`outlast chain`: everything is sent at once, and nothing has to keep running."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli import FAILED
from outlast.cli.commands.submit import hand_over, tell
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
from outlast.controller.submission import prepare
from outlast.domain.model import EntryKind, Outcome, Spec, attempts_needed
from outlast.errors import BadInput
from outlast.text import counted, printable

if TYPE_CHECKING:
    from outlast.journal.journal import Journal

#: Beyond what is needed, one job in this many is sent in case some are lost; the rest ends at once.
SPARE = 5
MOST_JOBS = 1000


@click.command()
@directory_argument
@click.option("-n", "--jobs", type=click.IntRange(1, MOST_JOBS), help="Jobs for each run.")
@cluster_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, directory: Path, jobs: int | None, cluster: str | None, as_json: bool
) -> None:
    """Send each run as a chain of jobs, for login nodes where nothing may keep running.

    Each job waits for the end of the one before and goes on from its checkpoint. When the training finishes,
    the rest are cancelled or end within seconds. Without -n the number is worked out from the time that
    params.yaml asks for and the longest that the cluster lets a job run.
    """
    from outlast.controller.supervisor import control
    from outlast.spec import read

    experiment = experiment_at(directory)
    spec = prepare(experiment, read(experiment.root, cluster), keep=False)
    kind = spec.profile.get("scheduler", spec.cluster)
    if kind == "local":
        raise BadInput("chain is for clusters: on this machine `outlast run%s` does it" % where(directory))
    in_place = kind == "htcondor"
    number = jobs if jobs is not None else _number(spec)
    if not in_place:
        _refuse_what_never_fits(spec, number)
    with control(experiment, "chain") as session:
        # Only now: whoever else held the experiment would send the runs as single jobs.
        submitted = hand_over(experiment, cluster)
        before = session.journal.last_entry()
        done = session.step(budget=LONGEST_PASS, jobs=number)
        became = _what_became(session.journal, before)
    complete = not done.trouble and not became.trouble
    if as_json:
        write_json(
            {
                "jobs": number,
                "chains": became.sent,
                "not_sent": became.trouble,
                "trouble": done.trouble or None,
            }
        )
    else:
        tell(submitted)
        _say(became, number, in_place, done.trouble, directory)
    ctx.exit(0 if complete else FAILED)


@dataclass(frozen=True)
class _Became:
    """By run: the ids of a chain that was sent whole, or what went wrong."""

    sent: dict[str, str]
    trouble: dict[str, str]


def _what_became(journal: Journal, before: int) -> _Became:
    sent: dict[str, str] = {}
    trouble: dict[str, str] = {}
    for row in journal.entries(after=before):
        entry = row.entry
        if entry.kind is EntryKind.QUEUED:
            sent[entry.run] = entry.data["job"]
            if entry.data.get("reason"):
                trouble[entry.run] = entry.data["reason"]
        elif entry.kind is EntryKind.UNSURE:
            trouble[entry.run] = "it is not known whether it was sent: %s" % entry.data.get("reason", "")
        elif entry.kind is EntryKind.ENDED and entry.data["outcome"] == Outcome.REJECTED.value:
            trouble[entry.run] = "refused: %s" % entry.data["detail"]
    for run in journal.live().values():
        if run.current is None and run.name not in trouble:
            trouble[run.name] = "not sent: as many as may be at once are under way"
    return _Became(sent, trouble)


_FOLLOWING = "%s each, every one waiting for the one before"


def _say(became: _Became, number: int, in_place: bool, trouble: str, directory: Path) -> None:
    if trouble:
        click.echo("the scheduler did not answer, nothing was sent: %s; try again" % trouble, err=True)
        return
    if became.sent:
        how = _FOLLOWING % counted(number, "job")
        if in_place:
            how = "one job each that starts itself again up to %s" % counted(number, "time")
        click.echo("sent %s as %s: %s" % (counted(len(became.sent), "run"), how, some(list(became.sent))))
    for run, why in became.trouble.items():
        click.echo("%s: %s" % (run, printable(why)), err=True)
    if not became.sent and not became.trouble:
        click.echo("nothing to send: no run waits for an attempt")
    if became.trouble:
        click.echo("`outlast chain%s` again sends what waits" % where(directory), err=True)
    elif became.sent:
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


def _refuse_what_never_fits(spec: Spec, number: int) -> None:
    """All jobs of a chain are sent together and stay in the queue together."""
    limits = (("most_jobs", "at once"), ("submit_rate", "in a minute"))
    for key, when in limits:
        most = spec.profile.get(key)
        if most is not None and number > most:
            raise BadInput(
                "a chain of %d jobs can never be sent: the profile of cluster %s allows %d jobs %s (%s). Say "
                "`-n %d`, or less; `outlast chain` again sends the next ones once these have ended"
                % (number, spec.cluster, most, when, key, most)
            )
