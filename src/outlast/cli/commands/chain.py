"""`outlast chain`: submit all jobs of each run at once, so that no process has to keep running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED
from outlast.cli.commands.submit import print_submitted, submit_runs
from outlast.cli.common import (
    LONGEST_PASS,
    cluster_option,
    directory_argument,
    experiment_at,
    join_names,
    json_option,
    show_argument,
    write_json,
)
from outlast.controller.submission import prepare
from outlast.domain.model import EntryKind, Outcome, RunState, Spec, attempts_needed
from outlast.errors import BadInput
from outlast.text import counted, printable

if TYPE_CHECKING:
    from outlast.controller.controller import Pass
    from outlast.domain.model import Run
    from outlast.journal.journal import Journal

#: One spare job per this many needed ones, in case some are lost; unused ones end at once.
SPARE = 5
MOST_JOBS = 1000
#: The keys of params.yaml and of a profile that limit how much is submitted.
_LIMITS = ("parallel", "most_jobs", "submit_rate")


@click.command()
@directory_argument
@click.option("-n", "--jobs", type=click.IntRange(1, MOST_JOBS), help="Number of jobs for each run.")
@cluster_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, directory: Path, jobs: int | None, cluster: str | None, as_json: bool
) -> None:
    """Submit each run as a chain of jobs, for login nodes where no process may keep running.

    Each job starts when the previous one has ended and resumes from its checkpoint. When the run finishes,
    the remaining jobs are cancelled or end within seconds. Without -n, the number of jobs is computed from
    `resources.time` in params.yaml and `longest` in the profile of the cluster.
    """
    from outlast.controller.supervisor import control
    from outlast.spec import read

    experiment = experiment_at(directory)
    spec = prepare(experiment, read(experiment.root, cluster), keep=False)
    kind = spec.profile.get("scheduler", spec.cluster)
    if kind == "local":
        raise BadInput(
            "chain is for batch clusters; on this machine, use `outlast run%s`" % show_argument(directory)
        )
    in_place = kind == "htcondor"
    number = jobs if jobs is not None else _compute_jobs(spec)
    if not in_place:
        _check_limits(spec, number)
    with control(experiment, "chain") as session:
        # Only now: another holder of the experiment would submit the runs as single jobs.
        submitted = submit_runs(experiment, cluster)
        before = session.journal.last_entry()
        done = session.step(budget=LONGEST_PASS, jobs=number)
        result = _collect_result(session.journal, before, done)
    complete = not done.scheduler_error and not result.errors
    if as_json:
        write_json(
            {
                "jobs": number,
                "chains": result.submitted,
                "not_sent": result.errors,
                "trouble": done.scheduler_error or None,
            }
        )
    else:
        print_submitted(submitted)
        _print_result(result, number, in_place, done.scheduler_error, directory)
    ctx.exit(0 if complete else FAILED)


@dataclass(frozen=True)
class _ChainResult:
    """The ids of the submitted jobs by run, and the reasons why runs were not or not fully submitted."""

    submitted: dict[str, str]
    errors: dict[str, str]


def _collect_result(journal: Journal, before: int, done: Pass) -> _ChainResult:
    """Return the result of a pass, whose entries in the journal are those after number `before`."""
    submitted: dict[str, str] = {}
    errors: dict[str, str] = {}
    for row in journal.entries(after=before):
        entry = row.entry
        if entry.kind is EntryKind.QUEUED:
            submitted[entry.run] = entry.data["job"]
            if entry.data.get("reason"):
                errors[entry.run] = entry.data["reason"]
        elif entry.kind is EntryKind.UNSURE:
            errors[entry.run] = "it is unknown whether the scheduler has it: %s" % entry.data.get(
                "reason", ""
            )
        elif entry.kind is EntryKind.ENDED and entry.data["outcome"] == Outcome.REJECTED.value:
            errors[entry.run] = "refused: %s" % entry.data["detail"]
    explain = _explainer(journal.newest_spec(), done)
    for run in journal.live().values():
        if run.current is None and run.name not in errors:
            errors[run.name] = "not submitted: %s" % explain(run)
    return _ChainResult(submitted, errors)


def _explainer(spec: Spec | None, done: Pass) -> Callable[[Run], str]:
    """Return a function that explains why a pass did not submit a run."""
    profile: Mapping[str, Any] = {"parallel": spec.parallel, **spec.profile} if spec else {}
    limits = ["%s %s" % (key, profile[key]) for key in _LIMITS if profile.get(key) is not None]
    put_off, over_limit, held_back = map(frozenset, (done.put_off, done.over_limit, done.held_back))

    def explain(run: Run) -> str:
        if done.scheduler_error:
            return "the scheduler did not respond"
        if run.name in put_off:
            return "the time for submissions (%.0f s) was used up" % LONGEST_PASS
        if run.name in over_limit:
            return "a limit is reached: %s" % " or ".join(limits)
        if run.name in held_back:
            return "its data was not available; another run tests whether it is now"
        if run.state is RunState.ACCEPTED:
            return "it has finished; its results are being published"
        return "it pauses between two attempts"

    return explain


def _print_result(
    result: _ChainResult, number: int, in_place: bool, scheduler_error: str, directory: Path
) -> None:
    if scheduler_error:
        text = "the scheduler did not respond: %s; no job was submitted. Run `outlast chain%s` again."
        click.echo(text % (scheduler_error, show_argument(directory)), err=True)
        return
    if result.submitted:
        jobs = "a chain of %s" % counted(number, "job")
        if in_place:
            jobs = "one job that restarts itself up to %s" % counted(number, "time")
        names = join_names(list(result.submitted))
        click.echo("queued %s, each as %s: %s" % (counted(len(result.submitted), "run"), jobs, names))
    for run, why in result.errors.items():
        click.echo("%s: %s" % (run, printable(why)), err=True)
    if not result.submitted and not result.errors:
        click.echo("nothing to submit: no run is waiting for an attempt")
    if result.errors:
        click.echo("Run `outlast chain%s` again to submit the rest." % show_argument(directory), err=True)
    elif result.submitted:
        click.echo(
            "No supervision is needed. Run `outlast tick%s` to update `status`, `explain` and results/."
            % show_argument(directory)
        )


def _compute_jobs(spec: Spec) -> int:
    """Return the number of jobs that a run needs, with spares. Raises BadInput if `longest` is not set."""
    if spec.profile.get("longest") is None:
        raise BadInput(
            "the number of jobs is unknown: give it with -n, or add the time limit of cluster %s to its "
            "profile in clusters.yaml, such as `longest: 24h`" % spec.cluster
        )
    needed = attempts_needed(spec)
    return min(MOST_JOBS, needed + max(1, needed // SPARE))


def _check_limits(spec: Spec, number: int) -> None:
    """Raise BadInput if the profile's limits are too small for a chain, whose jobs are submitted together."""
    limits = (("most_jobs", "at once"), ("submit_rate", "in a minute"))
    for key, period in limits:
        most = spec.profile.get(key)
        if most is not None and number > most:
            raise BadInput(
                "a chain of %d jobs cannot be submitted: the profile of cluster %s allows %d jobs %s (%s). "
                "Use `-n %d` or less, and run `outlast chain` again when these have ended"
                % (number, spec.cluster, most, period, key, most)
            )
