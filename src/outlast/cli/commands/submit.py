"""`outlast submit`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from outlast.cli.common import (
    carry_out,
    cluster_option,
    directory_argument,
    experiment_at,
    json_option,
    some,
    where,
    write_json,
)
from outlast.cli.first_pass import Sending
from outlast.controller.submission import Submitted, prepare, submit
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank
from outlast.text import counted


@click.command()
@directory_argument
@cluster_option
@click.option("--dry-run", is_flag=True, help="Show what would be sent; write and send nothing.")
@json_option
def command(directory: Path, cluster: str | None, dry_run: bool, as_json: bool) -> None:
    """Hand the runs of an experiment over. From then on they are never lost.

    Submitting again adds what is new in params.yaml and leaves the rest alone.
    """
    experiment = experiment_at(directory)
    if dry_run:
        _show(experiment, cluster, as_json)
        return
    submitted = hand_over(experiment, cluster)
    first = Sending(experiment, directory)
    held = carry_out(experiment, "submit", first) if submitted.new else ""
    if as_json:
        write_json(
            {
                "submitted": [plan.name for plan in submitted.new],
                "known": [plan.name for plan in submitted.known],
                "changed": [plan.name for plan in submitted.changed],
                "refused": first.refused,
                "held": held or None,
            }
        )
        return
    tell(submitted)
    first.tell_trouble()
    if held:
        click.echo(held)
    elif submitted.new and first.live:
        click.echo(
            "go on with `outlast up%s`, or with `outlast tick%s` from cron" % ((where(directory),) * 2)
        )


def hand_over(experiment: Experiment, cluster: str | None = None) -> Submitted:
    """Check, pack and write the request; `cluster` is meant instead of the one in `params.yaml`."""
    from outlast.spec import read

    parsed = read(experiment.root, cluster)
    for warning in parsed.warnings:
        click.echo("warning: %s" % warning, err=True)
    for item, way in zip(parsed.spec.data, parsed.data_methods, strict=True):
        click.echo("data: %s comes by %s: %s" % (item.name, way.method, way.why), err=True)
    journal = None if is_blank(experiment.journal) else Journal(experiment.journal)
    try:
        return submit(experiment, parsed, journal)
    finally:
        if journal is not None:
            journal.close()


def tell(submitted: Submitted) -> None:
    if submitted.new:
        names = [plan.name for plan in submitted.new]
        click.echo("submitted %s: %s" % (counted(len(names), "run"), some(names)))
    if submitted.known:
        click.echo("%s known already and left alone" % counted(len(submitted.known), "run"))
    if submitted.changed:
        names = [plan.name for plan in submitted.changed]
        click.echo(
            "%s known already; params.yaml or the code has changed since, which a run that is under way does "
            "not see (`outlast retry RUN` takes the new one once it has ended): %s"
            % (counted(len(names), "run"), some(names))
        )


def _show(experiment: Experiment, cluster: str | None, as_json: bool) -> None:
    import json

    from outlast.domain.model import Attempt, AttemptState, Run, RunState
    from outlast.exchange import exchange_for, zipapp
    from outlast.schedulers import connect
    from outlast.spec import read

    parsed = read(experiment.root, cluster)
    spec = prepare(experiment, parsed, keep=False)
    plan = parsed.runs[0]
    run = Run(plan.name, 0, 0, plan.params, RunState.WAITING, 0.0, 0.0)
    attempt = Attempt(plan.name, 1, "0" * 12 + "-1", AttemptState.INTENDED, 0.0)
    scheduler = connect(spec, experiment.identity)
    exchange = exchange_for(experiment, experiment.zipapp(zipapp.digest()), spec, scheduler)
    order = json.loads(exchange.order(run, attempt, spec).to_json())
    rendered = scheduler.render([exchange.request(run, attempt, spec)])
    if as_json:
        write_json({"runs": [plan.name for plan in parsed.runs], "order": order, "job": rendered})
        return
    names = [one.name for one in parsed.runs]
    click.echo("%s would be submitted: %s" % (counted(len(names), "run"), some(names)))
    click.echo("\nthe job of %s's first attempt (%s):\n%s" % (plan.name, spec.cluster, rendered))
    click.echo("\nits work order:")
    json.dump(order, sys.stdout, indent=2)
    click.echo("\n\nnothing was written or sent; `outlast run` does it")
