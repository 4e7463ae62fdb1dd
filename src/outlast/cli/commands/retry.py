"""`outlast retry`."""

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
    json_option,
    locate,
    open_journal,
    some,
    where,
    write_json,
)
from outlast.cli.first_pass import Sending
from outlast.controller.submission import retry
from outlast.domain.model import Run, RunState
from outlast.errors import BadInput
from outlast.journal.journal import Journal


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@here_option
@cluster_option
@click.option("--failed", is_flag=True, help="All runs that failed.")
@json_option
def command(runs: tuple[str, ...], directory: Path, cluster: str | None, failed: bool, as_json: bool) -> None:
    """Give failed or cancelled runs another chance, with params.yaml and code as they are now.

    They go on from their checkpoints.
    """
    from outlast.spec import read

    if runs and failed:
        raise BadInput("name the runs to retry, or say --failed, not both")
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
                _refuse_a_silent_move(journal, found, parsed.spec.cluster)
            retry(experiment, parsed, journal, tuple(found))
    finally:
        journal.close()
    names = [run.name for run in found]
    # A chain is for login nodes where nobody supervises: one job alone would go on for nobody.
    sending = Sending(experiment, directory, budget=0.0 if chained else LONGEST_PASS)
    held = carry_out(experiment, "retry", sending) if found else ""
    if as_json:
        write_json({"retried": names, "sent": sending.jobs, "refused": sending.refused, "held": held or None})
        return
    click.echo("to be tried again: %s" % some(names) if names else "no run has failed")
    if held:
        click.echo(held)
    elif names:
        sending.tell_jobs()
        sending.tell_trouble()
        up, chain = "outlast up%s" % where(directory), "outlast chain%s" % where(directory)
        if chained:
            click.echo("nothing was sent yet: `%s` sends a chain again, `%s` one job at a time" % (chain, up))
        elif sending.live:
            click.echo("go on with `%s`" % up)


def _were_chained(journal: Journal, runs: Sequence[Run]) -> bool:
    """The last attempt of one of them was sent as a chain."""
    tokens = [run.last.token for run in runs if run.last is not None]
    return any(attempt is not None and attempt.jobs > 1 for attempt in map(journal.attempt, tokens))


def _refuse_a_silent_move(journal: Journal, runs: Sequence[Run], cluster: str) -> None:
    """Runs may have been submitted with `--cluster`, which `params.yaml` knows nothing of."""
    for run in runs:
        before = journal.spec(run.spec).cluster
        if before != cluster:
            raise BadInput(
                "%s was on cluster %s, and params.yaml says %s; say which one is meant with `--cluster %s` "
                "or `--cluster %s`" % (run.name, before, cluster, before, cluster)
            )
