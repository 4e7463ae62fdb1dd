"""`outlast retry`: retry failed or cancelled runs from their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from outlast.cli.common import (
    LONGEST_PASS,
    carry_out,
    cluster_option,
    find_runs,
    here_option,
    join_names,
    json_option,
    locate,
    open_journal,
    show_argument,
    write_json,
)
from outlast.cli.first_pass import FirstPass
from outlast.controller.submission import retry
from outlast.domain.model import Run, RunState
from outlast.errors import BadInput
from outlast.journal.journal import Journal


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@here_option
@cluster_option
@click.option("--failed", is_flag=True, help="Retry all failed runs.")
@json_option
def command(runs: tuple[str, ...], directory: Path, cluster: str | None, failed: bool, as_json: bool) -> None:
    """Retry failed or cancelled runs with the current params.yaml and code.

    The runs resume from their checkpoints.
    """
    from outlast.spec import read

    if runs and failed:
        raise BadInput("name the runs to retry or use --failed, not both")
    experiment, _ = locate(runs[0] if runs else None, directory)
    journal = open_journal(experiment)
    try:
        if failed:
            found = [run for run in journal.runs() if run.state is RunState.FAILED]
        else:
            found = find_runs(journal, runs, directory, "--failed")
        for run in found:
            if run.state not in (RunState.FAILED, RunState.CANCELLED):
                raise BadInput(
                    "%s is %s; only a failed or cancelled run can be retried" % (run.name, run.state.value)
                )
        chained = _were_chained(journal, found)
        if found:
            parsed = read(experiment.root, cluster)
            if cluster is None:
                _check_same_cluster(journal, found, parsed.spec.cluster)
            retry(experiment, parsed, journal, tuple(found))
    finally:
        journal.close()
    names = [run.name for run in found]
    # Chains are used where nothing supervises: a single job would end without a successor.
    first = FirstPass(experiment, directory, budget=0.0 if chained else LONGEST_PASS)
    held = carry_out(experiment, "retry", first) if found else ""
    if as_json:
        write_json({"retried": names, "sent": first.jobs, "refused": first.refused, "held": held or None})
        return
    click.echo("retrying: %s" % join_names(names) if names else "no run has failed")
    if held:
        click.echo(held)
    elif names:
        first.print_jobs()
        first.print_errors()
        place = show_argument(directory)
        if chained:
            text = "Nothing was submitted yet. Run `outlast chain%s` to submit a chain, or `outlast up%s` to "
            click.echo(text % (place, place) + "submit one job at a time.")
        elif first.live:
            click.echo("Run `outlast up%s` (or `outlast tick%s` from cron) to continue." % (place, place))


def _were_chained(journal: Journal, runs: Sequence[Run]) -> bool:
    """Return True if the last attempt of one of these runs was a chain."""
    tokens = [run.last.token for run in runs if run.last is not None]
    return any(attempt is not None and attempt.jobs > 1 for attempt in map(journal.attempt, tokens))


def _check_same_cluster(journal: Journal, runs: Sequence[Run], cluster: str) -> None:
    """Raise BadInput if a run was submitted to another cluster with `--cluster`: a retry must not move it."""
    for run in runs:
        before = journal.spec(run.spec).cluster
        if before != cluster:
            raise BadInput(
                "%s was on cluster %s, but params.yaml names %s; choose one with `--cluster %s` or "
                "`--cluster %s`" % (run.name, before, cluster, before, cluster)
            )
