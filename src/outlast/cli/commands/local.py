"""`outlast local`: show the local cluster, and kill or evict its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import add_colour, join_names, json_option, table, write_json
from outlast.errors import BadInput
from outlast.units import show_duration

if TYPE_CHECKING:
    from outlast.local_cluster.client import Client

#: Jobs shown when there are many; `--all` shows the rest.
SHOWN = 30
#: Seconds to wait for the daemon's response.
TIMEOUT = 10.0

_name_option = click.option(
    "--name",
    default="local",
    show_default=True,
    metavar="CLUSTER",
    help="Name of the local cluster, as in `cluster:`.",
)


@click.group()
def command() -> None:
    """Show the local cluster; kill or evict its jobs.

    Killed and evicted jobs behave as on a large cluster: rehearse failures here before they happen there.
    """


@command.command()
@_name_option
@json_option
@click.option("--all", "everything", is_flag=True, help="Show all jobs.")
def status(name: str, as_json: bool, everything: bool) -> None:
    """Show the hosts, their slots, and the jobs of all experiments."""
    state = _query_state(name)
    if as_json:
        write_json({"cluster": name, "running": state is not None, **(state or {"hosts": {}, "jobs": []})})
    elif state is None:
        click.echo("local cluster %s is not running and has no jobs; it starts with the first job" % name)
    else:
        click.echo(_status_text(name, state, everything))


@command.command(short_help="Kill a running job without warning.")
@click.argument("job")
@_name_option
def kill(job: str, name: str) -> None:
    """Kill a running JOB (its number or name) without warning, as when a node fails."""
    found = _stop_job(name, job, "kill")
    click.echo("job %s (%s) was killed without warning" % (found["job"], found["name"]))


@command.command(short_help="Send a running job the stop signal, then kill it.")
@click.argument("job")
@_name_option
def evict(job: str, name: str) -> None:
    """Send a running JOB (its number or name) the stop signal; kill it when its grace period is over."""
    found = _stop_job(name, job, "evict")
    click.echo("job %s (%s) was sent the stop signal" % (found["job"], found["name"]))


@command.command(short_help="Stop the daemon of the cluster.")
@_name_option
@click.option("--force", is_flag=True, help="Cancel queued jobs and kill running ones.")
def stop(name: str, force: bool) -> None:
    """Stop the daemon of the cluster. Refuses while there are jobs, unless --force is given."""
    from outlast.schedulers.local import LocalScheduler

    if _query_state(name) is None:
        click.echo("local cluster %s is not running" % name)
        return
    LocalScheduler("local", name=name, timeout=TIMEOUT).stop(force)
    click.echo("local cluster %s is stopped" % name)


def _query_state(name: str) -> dict[str, Any] | None:
    """Return the daemon's hosts and jobs; None if there is neither a daemon nor a job that needs one."""
    from outlast.local_cluster.client import NotSent

    client = _client(name)
    if client is None:
        return None
    try:
        return _ask(client, name, "jobs", start=False)
    except NotSent:
        # A daemon that was killed left jobs behind, which the next one takes over.
        return _ask(client, name, "jobs") if _has_jobs(client.directory) else None


def _client(name: str) -> Client | None:
    """Return a client of the cluster; None if it never existed, so that asking does not create it."""
    from outlast.local_cluster.client import Client, DaemonOptions
    from outlast.local_cluster.directory import cluster_directory, find_root

    if not (find_root() / name).is_dir():
        return None
    return Client(cluster_directory(name), DaemonOptions())


def _ask(
    client: Client, name: str, operation: str, *, start: bool = True, **arguments: Any
) -> dict[str, Any]:
    from outlast.local_cluster.client import NoResponse, NotSent, Refused
    from outlast.schedulers.base import SchedulerUnavailable

    try:
        return client.ask(operation, TIMEOUT, start=start, **arguments)
    except (NotSent, NoResponse, Refused) as error:
        if isinstance(error, NotSent) and not start:
            raise
        raise SchedulerUnavailable("local cluster %s: %s" % (name, error)) from error


def _has_jobs(directory: Path) -> bool:
    """Return True if the cluster's log has jobs that have not ended."""
    from outlast.local_cluster.job import JobState
    from outlast.local_cluster.job_log import JobLog

    jobs = JobLog(directory / "jobs.jsonl").load().jobs.values()
    return any(job.phase is not JobState.ENDED for job in jobs)


def _stop_job(name: str, target: str, operation: str) -> Mapping[str, Any]:
    """Kill or evict a running job and return it. Raises BadInput."""
    state = _query_state(name)
    found = _find_job(state["jobs"] if state else [], target, name)
    if found["phase"] != "running":
        raise BadInput(
            "job %s (%s) is %s; only a running job can be killed or evicted (`outlast cancel` cancels a run)"
            % (found["job"], found["name"], found["phase"])
        )
    client = _client(name)
    assert client is not None
    _ask(client, name, operation, tokens=[found["token"]])
    return found


def _find_job(jobs: Sequence[Mapping[str, Any]], target: str, name: str) -> Mapping[str, Any]:
    """Return the job with this number, else the only one not ended with this name or run. Raises BadInput."""
    for job in jobs:
        if job["job"] == target:
            return job
    current = [job for job in jobs if job["phase"] != "ended"]
    matches = [job for job in current if job["name"] == target or job["name"].startswith(target + "-")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        known = join_names(["%s (%s)" % (job["job"], job["name"]) for job in matches])
        raise BadInput("%s matches %d jobs: %s; use the number" % (target, len(matches), known))
    known = join_names(["%s (%s)" % (job["job"], job["name"]) for job in current])
    raise BadInput("local cluster %s has no job %s; there are %s" % (name, target, known or "no jobs"))


def _status_text(name: str, state: Mapping[str, Any], everything: bool) -> str:
    hosts = [
        (
            host,
            "%d of %d" % (facts["cpus_taken"], facts["cpus"]),
            "%d of %d" % (facts["gpus_taken"], facts["gpus"]),
        )
        for host, facts in state["hosts"].items()
    ]
    parts = [
        "local cluster %s, daemon pid %d" % (name, state["pid"]),
        table(("HOST", "CPUS IN USE", "GPUS IN USE"), hosts, right=(1, 2)),
    ]
    jobs = state["jobs"]
    if not jobs:
        return "\n\n".join([*parts, "no jobs"])
    shown = jobs if everything else sorted(jobs, key=lambda job: job["phase"] == "ended")[:SHOWN]
    parts.append(table(("JOB", "NAME", "STATE", "HOST", "ELAPSED", "DETAIL"), map(_row, shown), right=(0, 4)))
    if len(shown) < len(jobs):
        parts.append("… and %d more; --all shows them" % (len(jobs) - len(shown)))
    return "\n\n".join(parts)


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    elapsed = job.get("elapsed")
    return (
        job["job"],
        job["name"],
        add_colour(job["phase"]),
        job.get("host", "-"),
        "-" if elapsed is None else show_duration(elapsed),
        job.get("reason", ""),
    )
