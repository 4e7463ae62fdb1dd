"""`outlast submit`: submit the runs and return."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from outlast.cli.common import (
    carry_out,
    cluster_option,
    directory_argument,
    experiment_at,
    join_names,
    json_option,
    show_argument,
    write_json,
)
from outlast.cli.first_pass import FirstPass
from outlast.controller.submission import Submitted, prepare, submit
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank
from outlast.text import counted


@click.command()
@directory_argument
@cluster_option
@click.option(
    "--dry-run", is_flag=True, help="Show the first job and its work order. Writes and submits nothing."
)
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, cluster: str | None, dry_run: bool, as_json: bool) -> None:
    """Submit the runs of an experiment and return.

    Submitting again adds new runs in params.yaml and does not change the others. The exit code is 1 if the
    scheduler refused a job.
    """
    experiment = experiment_at(directory)
    if dry_run:
        _print_dry_run(experiment, cluster, as_json)
        return
    submitted = submit_runs(experiment, cluster)
    first = FirstPass(experiment, directory)
    held = carry_out(experiment, "submit", first) if submitted.new else ""
    if as_json:
        write_json(
            {
                "submitted": [plan.name for plan in submitted.new],
                "known": [plan.name for plan in submitted.known],
                "changed": [plan.name for plan in submitted.changed],
                "refused": first.refused,
                "refused_for_now": first.refused_for_now,
                "held": held or None,
            }
        )
        ctx.exit(first.exit_code)
    print_submitted(submitted)
    first.print_errors()
    if held:
        click.echo(held)
    elif submitted.new and first.live:
        place = show_argument(directory)
        click.echo("Run `outlast up%s` (or `outlast tick%s` from cron) to continue." % (place, place))
    ctx.exit(first.exit_code)


def submit_runs(experiment: Experiment, cluster: str | None = None) -> Submitted:
    """Validate the experiment, pack its code and write the request; print warnings and data methods.

    `cluster` replaces the one in `params.yaml`.
    """
    from outlast.spec import read

    parsed = read(experiment.root, cluster)
    for warning in parsed.warnings:
        click.echo("warning: %s" % warning, err=True)
    for item, method in zip(parsed.spec.data, parsed.data_methods, strict=True):
        click.echo("data: %s: method %s: %s" % (item.name, method.method, method.why), err=True)
    journal = None if is_blank(experiment.journal) else Journal(experiment.journal)
    try:
        return submit(experiment, parsed, journal)
    finally:
        if journal is not None:
            journal.close()


def print_submitted(submitted: Submitted) -> None:
    """Print which runs are new, and which were known already."""
    if submitted.new:
        names = [plan.name for plan in submitted.new]
        click.echo("submitted %s: %s" % (counted(len(names), "run"), join_names(names)))
    if submitted.known:
        click.echo("%s already submitted; not changed" % counted(len(submitted.known), "run"))
    if submitted.changed:
        names = [plan.name for plan in submitted.changed]
        click.echo(
            "%s already submitted, with an earlier params.yaml or code; a run keeps its version until it "
            "ends, and `outlast retry RUN` then uses the new one (`outlast retry --again RUN` for a "
            "finished run): %s" % (counted(len(names), "run"), join_names(names))
        )


def _print_dry_run(experiment: Experiment, cluster: str | None, as_json: bool) -> None:
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
    click.echo("%s would be submitted: %s" % (counted(len(names), "run"), join_names(names)))
    click.echo("\nJob of the first attempt of %s (cluster %s):\n%s" % (plan.name, spec.cluster, rendered))
    click.echo("\nWork order:")
    json.dump(order, sys.stdout, indent=2)
    click.echo("\n\nNothing was written or submitted. `outlast run` does both.")
