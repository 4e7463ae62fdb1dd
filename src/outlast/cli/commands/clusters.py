"""`outlast clusters`: the clusters that `cluster:` may name, and the schedulers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import here_option, json_option, table, wrap_line, write_json
from outlast.errors import BadInput
from outlast.text import counted

if TYPE_CHECKING:
    from outlast.schedulers.discovery import Presence
    from outlast.schedulers.queue_limits import QueueLimit
    from outlast.spec.cluster_library import KnownCluster, Library
    from outlast.spec.mistakes import Mistake

#: Shown instead of the scheduler if a mistake in the profile hides it.
UNKNOWN = "unknown"
#: Timeout of one query to a scheduler, in seconds.
_PATIENCE = 10.0


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@here_option
@json_option
def command(name: str | None, directory: Path, as_json: bool) -> None:
    """List the clusters that params.yaml may name, and the schedulers found on this machine.

    With NAME, show one cluster in full, with default settings and the limits that its scheduler reports.
    """
    from outlast.spec.cluster_library import Library

    library = Library(directory)
    if name is not None:
        cluster = library.find(name)
        if cluster is None:
            _print_mistakes([*library.mistakes, *library.mistakes_near(name)])
            raise BadInput('"%s" is not a cluster; %s' % (name, library.instead_of(name)))
        _show_one(cluster, as_json)
        return
    _show_all(library, as_json)


def _show_all(library: Library, as_json: bool) -> None:
    from outlast.spec.schema import SCHEDULERS

    clusters = [found for found in map(library.find, library.names) if found is not None]
    here = _find_schedulers(SCHEDULERS)
    mistakes = list(dict.fromkeys([*library.mistakes, *(one for each in clusters for one in each.mistakes)]))
    if as_json:
        write_json(
            {
                "clusters": [_origin_as_json(one) for one in clusters],
                "machine": {kind: asdict(found) for kind, found in here.items()},
                "mistakes": [asdict(mistake) for mistake in mistakes],
            }
        )
        return
    rows = [(one.profile.name, one.profile.scheduler or UNKNOWN, _show_origin(one)) for one in clusters]
    click.echo(table(("CLUSTER", "SCHEDULER", "FROM"), rows))
    click.echo("\nOn this machine:")
    for kind, found in here.items():
        for line in _presence_lines(kind, found):
            click.echo(wrap_line("  " + line, 13))
    _print_mistakes(mistakes)


def _show_one(cluster: KnownCluster, as_json: bool) -> None:
    from outlast.schedulers.discovery import describe_pool
    from outlast.schedulers.queue_limits import query_queue_limits

    profile = cluster.profile
    known = (profile.scheduler,) if profile.scheduler else ()
    here = _find_schedulers(known, images=bool(profile.site.container)) if known else {}
    limits: list[QueueLimit] = []
    error = ""
    if known and not here[profile.scheduler].problems:
        if profile.scheduler == "htcondor":
            found = here["htcondor"]
            here["htcondor"] = replace(found, notes=(*found.notes, describe_pool(_PATIENCE)))
        limits, error = query_queue_limits(profile.scheduler, profile.site, _PATIENCE)
    if as_json:
        write_json(
            {
                **_origin_as_json(cluster),
                "profile": dict(_settings(cluster)),
                "machine": {kind: asdict(found) for kind, found in here.items()},
                "limits": [asdict(limit) for limit in limits],
                "mistakes": [asdict(mistake) for mistake in cluster.mistakes],
            }
        )
        return
    click.echo("%s: %s, %s" % (profile.name, profile.scheduler or "scheduler unknown", _show_origin(cluster)))
    if not known:
        _print_mistakes(cluster.mistakes)
        return
    settings = dict(_settings(cluster))
    for key, value in settings.items():
        if _is_set(value):
            click.echo("  %-21s %s" % (_show_key(key), _show_value(key, value)))
    unset = ", ".join(_show_key(key) for key, value in settings.items() if not _is_set(value))
    click.echo(wrap_line("  %-21s %s" % ("not set", unset), 24))
    click.echo("On this machine:")
    for kind, found in here.items():
        for line in _presence_lines(kind, found):
            click.echo(wrap_line("  " + line, 13))
    for line in _limit_lines(cluster, limits, error):
        click.echo(line)
    _print_mistakes(cluster.mistakes)


def _print_mistakes(mistakes: Iterable[Mistake]) -> None:
    for mistake in dict.fromkeys(mistakes):
        click.echo(str(mistake), err=True)


def _find_schedulers(schedulers: tuple[str, ...], *, images: bool = True) -> dict[str, Presence]:
    """Look for these schedulers at the same time, and for a container program if `images`."""
    from concurrent.futures import ThreadPoolExecutor

    from outlast.schedulers.discovery import find_container_program, find_scheduler

    probes: dict[str, Callable[[], Presence]] = {
        kind: _this_machine if kind == "local" else partial(find_scheduler, kind, _PATIENCE)
        for kind in schedulers
    }
    if images:
        probes["apptainer"] = partial(find_container_program, _PATIENCE)
    with ThreadPoolExecutor(len(probes)) as pool:
        replies = {kind: pool.submit(probe) for kind, probe in probes.items()}
        return {kind: reply.result() for kind, reply in replies.items()}


def _this_machine() -> Presence:
    from outlast.local_cluster.hosts import this_machine
    from outlast.schedulers.discovery import Presence
    from outlast.spec.resource_checks import show_slots

    ((name, host),) = this_machine().items()
    return Presence(notes=("%s, %s" % (name, show_slots(host.cpus, host.gpus)),))


def _presence_lines(kind: str, found: Presence) -> Iterator[str]:
    good = [*([found.version] if found.version else []), *found.notes]
    if good or not found.problems:
        yield "%-10s %s" % (kind, "; ".join(good) or "found")
    for problem in found.problems:
        yield "%-10s %s" % (kind, problem)


def _origin_as_json(cluster: KnownCluster) -> dict[str, Any]:
    profile = cluster.profile
    return {
        "name": profile.name,
        "scheduler": profile.scheduler or None,
        "file": cluster.file or None,
        "line": cluster.line,
    }


def _show_origin(cluster: KnownCluster) -> str:
    if not cluster.file:
        return "built in"
    wrong = len(cluster.mistakes)
    suffix = ", with %s" % counted(wrong, "error") if wrong else ""
    return "%s:%s%s" % (cluster.file, cluster.line, suffix)


def _settings(cluster: KnownCluster) -> Iterator[tuple[str, Any]]:
    """Yield the settings in effect, also defaults; without keys that are not for this scheduler."""
    from outlast.node.staging.plan import DataSite
    from outlast.schedulers.profile import Profile
    from outlast.spec.cluster_library import known_hosts
    from outlast.spec.profiles import is_for

    profile = cluster.profile
    if profile.scheduler == "local":
        yield "hosts", {name: asdict(host) for name, host in known_hosts(profile).items()}
    data_keys = {one.name for one in fields(DataSite)}
    for one in sorted(fields(Profile), key=lambda one: one.name in data_keys):  # data settings last
        if one.name != "name" and is_for(one.name, profile.scheduler):
            yield one.name, getattr(profile.site, one.name)


def _is_set(value: Any) -> bool:
    return value is not None and value not in ("", ())


def _show_key(key: str) -> str:
    """Return the key as it is written in clusters.yaml, where `token` and `transfers` are groups."""
    if key in ("stall", "patience", "connections"):
        return "transfers.%s" % key
    return key.replace("token_", "token.")


def _show_value(key: str, value: Any) -> str:
    from outlast.spec.resource_checks import show_slots
    from outlast.units import show_duration, show_size

    if key in ("longest", "commit_every", "interval", "lag", "stall", "patience"):
        return show_duration(value)
    if key in ("largest_transfer", "cache_size"):
        return show_size(value)
    if isinstance(value, Mapping):
        hosts = ((name, show_slots(one["cpus"], one["gpus"])) for name, one in value.items())
        return ", ".join("%s (%s)" % host for host in hosts)
    return "; ".join(value) if isinstance(value, tuple) else str(value)


def _limit_lines(cluster: KnownCluster, limits: list[QueueLimit], error: str) -> Iterator[str]:
    from outlast.units import show_limit, write_duration

    if error:
        yield "limits unknown: %s" % error
    longest = cluster.profile.site.longest
    for limit in limits:
        queue = "%s%s" % (limit.name, " (the default)" if limit.default else "")
        if limit.longest is None:
            yield "%s: the time limit is %s" % (queue, limit.written)
            continue
        line = "%s: jobs end after %s" % (queue, show_limit(limit.longest))
        used = cluster.profile.site.queue == limit.name or limit.default
        if used and (longest is None or longest > limit.longest):
            line += "; add `longest: %s` to the profile" % write_duration(limit.longest)
        yield line
