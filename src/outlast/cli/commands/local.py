"""`outlast local`: the cluster that this machine plays, and trouble on it by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import json_option, paint, some, table, write_json
from outlast.errors import BadInput
from outlast.units import show_duration

if TYPE_CHECKING:
    from outlast.local_cluster.client import Client

#: Jobs shown when there are many; `--all` shows the rest.
SHOWN = 30
#: Seconds to wait for the daemon's answer.
TIMEOUT = 10.0

_name_option = click.option(
    "--name", default="local", show_default=True, metavar="CLUSTER", help="The name that `cluster:` has."
)


@click.group()
def command() -> None:
    """Look at the local cluster, or make trouble on it.

    What happens to a job here is what happens on a large cluster: rehearse it before you need it.
    """


@command.command()
@_name_option
@json_option
@click.option("--all", "everything", is_flag=True, help="Show every job, however many there are.")
def status(name: str, as_json: bool, everything: bool) -> None:
    """Hosts, slots, and the jobs of all experiments."""
    told = _look(name)
    if as_json:
        write_json({"cluster": name, "running": told is not None, **(told or {"hosts": {}, "jobs": []})})
    elif told is None:
        click.echo("local cluster %s is not running and has no jobs; it starts with the first one" % name)
    else:
        click.echo(_text(name, told, everything))


@command.command()
@click.argument("job")
@_name_option
def kill(job: str, name: str) -> None:
    """End a running JOB (its number or its name) at once and without warning, as a node that dies does."""
    found = _make_trouble(name, job, "kill")
    click.echo("job %s (%s) was killed without warning" % (found["job"], found["name"]))


@command.command()
@click.argument("job")
@_name_option
def evict(job: str, name: str) -> None:
    """Ask a running JOB (its number or its name) to leave; at the end of its grace it is killed."""
    found = _make_trouble(name, job, "evict")
    click.echo("job %s (%s) was asked to leave" % (found["job"], found["name"]))


@command.command()
@_name_option
@click.option("--force", is_flag=True, help="Kill the jobs that are queued or running.")
def stop(name: str, force: bool) -> None:
    """End the cluster's daemon. It refuses while there are jobs, unless they may be killed."""
    from outlast.schedulers.local import LocalScheduler

    if _look(name) is None:
        click.echo("local cluster %s is not running" % name)
        return
    LocalScheduler("local", name=name, timeout=TIMEOUT).stop(force)
    click.echo("local cluster %s is stopped" % name)


def _look(name: str) -> dict[str, Any] | None:
    """All that the daemon knows; None where there is neither a daemon nor a job that needs one."""
    from outlast.local_cluster.client import NotSent

    client = _client(name)
    if client is None:
        return None
    try:
        return _ask(client, name, "jobs", start=False)
    except NotSent:
        # A daemon that was killed left jobs behind, which the next one takes up.
        return _ask(client, name, "jobs") if _left_behind(client.directory) else None


def _client(name: str) -> Client | None:
    """None where no such cluster has ever been: looking at it must not make it."""
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


def _left_behind(directory: Path) -> bool:
    from outlast.local_cluster.job import JobState
    from outlast.local_cluster.job_log import JobLog

    jobs = JobLog(directory / "jobs.jsonl").load().jobs.values()
    return any(job.phase is not JobState.ENDED for job in jobs)


def _make_trouble(name: str, wanted: str, operation: str) -> Mapping[str, Any]:
    told = _look(name)
    found = _find(told["jobs"] if told else [], wanted, name)
    if found["phase"] != "running":
        raise BadInput(
            "job %s (%s) is %s; only a running job can be made to end (`outlast cancel` ends a run)"
            % (found["job"], found["name"], found["phase"])
        )
    client = _client(name)
    assert client is not None
    _ask(client, name, operation, tokens=[found["token"]])
    return found


def _find(jobs: Sequence[Mapping[str, Any]], wanted: str, name: str) -> Mapping[str, Any]:
    """A job by its number, else the one that is not over and has this name, or a name that begins so."""
    for job in jobs:
        if job["job"] == wanted:
            return job
    under_way = [job for job in jobs if job["phase"] != "ended"]
    alike = [job for job in under_way if job["name"] == wanted or job["name"].startswith(wanted + "-")]
    if len(alike) == 1:
        return alike[0]
    if alike:
        known = some(["%s (%s)" % (job["job"], job["name"]) for job in alike])
        raise BadInput("%s could be %d jobs: %s; give the number" % (wanted, len(alike), known))
    known = some(["%s (%s)" % (job["job"], job["name"]) for job in under_way])
    raise BadInput("local cluster %s has no job %s; there are %s" % (name, wanted, known or "no jobs"))


def _text(name: str, told: Mapping[str, Any], everything: bool) -> str:
    hosts = [
        (
            host,
            "%d of %d" % (facts["cpus_taken"], facts["cpus"]),
            "%d of %d" % (facts["gpus_taken"], facts["gpus"]),
        )
        for host, facts in told["hosts"].items()
    ]
    parts = [
        "local cluster %s, daemon %d" % (name, told["pid"]),
        table(("HOST", "CPUS TAKEN", "GPUS TAKEN"), hosts, right=(1, 2)),
    ]
    jobs = told["jobs"]
    if not jobs:
        return "\n\n".join([*parts, "no jobs"])
    shown = jobs if everything else sorted(jobs, key=lambda job: job["phase"] == "ended")[:SHOWN]
    parts.append(table(("JOB", "NAME", "STATE", "HOST", "ELAPSED", "WHAT"), map(_row, shown), right=(0, 4)))
    if len(shown) < len(jobs):
        parts.append("… and %d more; --all shows them" % (len(jobs) - len(shown)))
    return "\n\n".join(parts)


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    elapsed = job.get("elapsed")
    return (
        job["job"],
        job["name"],
        paint(job["phase"]),
        job.get("host", "-"),
        "-" if elapsed is None else show_duration(elapsed),
        job.get("reason", ""),
    )
