"""`outlast retry`: retry failed or cancelled runs from their checkpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from outlast.cli.common import (
    LONGEST_PASS,
    carry_out,
    check_selection,
    cluster_option,
    find_runs,
    here_option,
    join_names,
    json_option,
    locate_all,
    open_journal,
    show_argument,
    write_json,
)
from outlast.cli.first_pass import FirstPass
from outlast.controller.submission import retry
from outlast.domain.model import Run, RunState
from outlast.errors import BadInput, NotWritable
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@here_option
@cluster_option
@click.option(
    "--failed",
    is_flag=True,
    help="Retry all failed runs, and all that are held back, also because another user removed their job.",
)
@click.option(
    "--again", is_flag=True, help="Retry finished runs too. Their results are kept beside the new ones."
)
@click.option("--from-scratch", is_flag=True, help="Move the checkpoints aside and start from the beginning.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    directory: Path,
    cluster: str | None,
    failed: bool,
    again: bool,
    from_scratch: bool,
    as_json: bool,
) -> None:
    """Retry failed or cancelled runs with the current params.yaml and code.

    The runs resume from their checkpoints, unless --from-scratch is given.
    """
    from outlast.spec import read

    if failed:
        check_selection(runs, directory, "retry", "--failed")
    experiment = locate_all(runs, directory)
    journal = open_journal(experiment)
    held_back: list[Run] = []
    try:
        if failed:
            found = list(journal.failed_runs())
            held_back = [run for run in journal.live().values() if run.state is RunState.HELD_BACK]
        else:
            found = find_runs(journal, runs, directory, "--failed")
        for run in found:
            _check_state(run, again)
        chosen = [*found, *held_back]
        chained = _were_chained(journal, found)
        aside: list[Path] = []
        if chosen:
            parsed = read(experiment.root, cluster)
            if cluster is None:
                _check_same_cluster(journal, chosen, parsed.spec.cluster)
            aside = [path for run in found for path in _move_aside(experiment, run)] if from_scratch else []
            retry(
                experiment,
                parsed,
                journal,
                tuple(found),
                again=again,
                held_back=failed,
                from_scratch=from_scratch,
            )
    finally:
        journal.close()
    names = [run.name for run in chosen]
    # Chains are used where nothing supervises: a single job would end without a successor.
    first = FirstPass(experiment, directory, budget=0.0 if chained else LONGEST_PASS)
    held = carry_out(experiment, "retry", first) if chosen else ""
    if as_json:
        moved = [str(path) for path in aside]
        counts = {
            "sent": first.jobs,
            "refused": first.refused,
            "refused_for_now": first.refused_for_now,
        }
        write_json({"retried": names, **counts, "held": held or None, "moved_aside": moved})
        ctx.exit(first.exit_code)
    click.echo("retrying: %s" % join_names(names) if names else "no run has failed")
    if aside:
        click.echo("from scratch; what was saved before is in %s" % join_names([str(path) for path in aside]))
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
    ctx.exit(first.exit_code)


def _check_state(run: Run, again: bool) -> None:
    if run.state in (RunState.FAILED, RunState.CANCELLED, RunState.HELD_BACK):
        return
    if run.state is not RunState.FINISHED:
        raise BadInput("%s is %s; only a run that has ended can be retried" % (run.name, run.state.value))
    if not again:
        raise BadInput(
            "%s is finished; `outlast retry --again %s` continues it with the current params.yaml and code, "
            "and with --from-scratch it starts from the beginning" % (run.name, run.name)
        )


def _move_aside(experiment: Experiment, run: Run) -> list[Path]:
    """Rename what the run would resume from; return the new paths. Raise NotWritable."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    moved = []
    for path in experiment.saved_state(run.name):
        target = path.with_name("%s.before-%s" % (path.name, stamp))
        try:
            path.rename(target)
        except FileNotFoundError:
            continue  # nothing was saved
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotWritable("%s cannot be moved aside: %s; nothing was retried" % (path, reason)) from error
        moved.append(target)
    return moved


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
