"""`outlast clusters`: which names `cluster:` may have, and what of them is on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import here_option, json_option, table, write_json
from outlast.errors import BadInput
from outlast.text import counted

if TYPE_CHECKING:
    from outlast.schedulers.discovery import Presence
    from outlast.schedulers.queue_limits import QueueLimit
    from outlast.spec.cluster_library import KnownCluster, Library
    from outlast.spec.mistakes import Mistake

#: In place of a scheduler, where the profile has a mistake that keeps it from being known.
UNKNOWN = "not known"
#: Seconds that one question to a scheduler may take.
_PATIENCE = 10.0


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@here_option
@json_option
def command(name: str | None, directory: Path, as_json: bool) -> None:
    """List the clusters that params.yaml may name, and what was found on this machine.

    With NAME, show one in full, with the defaults that hold and the limits that its scheduler tells.
    """
    from outlast.spec.cluster_library import Library

    library = Library(directory)
    if name is not None:
        cluster = library.find(name)
        if cluster is None:
            _say_mistakes([*library.mistakes, *library.mistakes_near(name)])
            raise BadInput('"%s" is not a cluster; %s' % (name, library.instead_of(name)))
        _show_one(cluster, as_json)
        return
    _show_all(library, as_json)


def _show_all(library: Library, as_json: bool) -> None:
    from outlast.spec.schema import SCHEDULERS

    clusters = [found for found in map(library.find, library.names) if found is not None]
    here = _look(SCHEDULERS)
    mistakes = list(dict.fromkeys([*library.mistakes, *(one for each in clusters for one in each.mistakes)]))
    if as_json:
        write_json(
            {
                "clusters": [_origin(one) for one in clusters],
                "machine": {kind: asdict(found) for kind, found in here.items()},
                "mistakes": [asdict(mistake) for mistake in mistakes],
            }
        )
        return
    rows = [(one.profile.name, one.profile.scheduler or UNKNOWN, _place(one)) for one in clusters]
    click.echo(table(("CLUSTER", "SCHEDULER", "FROM"), rows))
    click.echo("\non this machine")
    for kind, found in here.items():
        for line in _lines(kind, found):
            click.echo("  " + line)
    _say_mistakes(mistakes)


def _show_one(cluster: KnownCluster, as_json: bool) -> None:
    from outlast.schedulers.discovery import pool
    from outlast.schedulers.queue_limits import queue_limits

    profile = cluster.profile
    known = (profile.scheduler,) if profile.scheduler else ()
    here = _look(known, images=bool(profile.site.container)) if known else {}
    limits: list[QueueLimit] = []
    trouble = ""
    if known and not here[profile.scheduler].problems:
        if profile.scheduler == "htcondor":
            found = here["htcondor"]
            here["htcondor"] = replace(found, notes=(*found.notes, pool(_PATIENCE)))
        limits, trouble = queue_limits(profile.scheduler, profile.site, _PATIENCE)
    if as_json:
        write_json(
            {
                **_origin(cluster),
                "profile": dict(_settings(cluster)),
                "machine": {kind: asdict(found) for kind, found in here.items()},
                "limits": [asdict(limit) for limit in limits],
                "mistakes": [asdict(mistake) for mistake in cluster.mistakes],
            }
        )
        return
    click.echo(
        "%s: %s, %s" % (profile.name, profile.scheduler or "its scheduler is not known", _place(cluster))
    )
    if not known:
        _say_mistakes(cluster.mistakes)
        return
    settings = dict(_settings(cluster))
    for key, value in settings.items():
        if _is_set(value):
            click.echo("  %-17s %s" % (key, _shown(key, value)))
    click.echo("  %-17s %s" % ("not set", ", ".join(key for key in settings if not _is_set(settings[key]))))
    click.echo("on this machine")
    for kind, found in here.items():
        for line in _lines(kind, found):
            click.echo("  " + line)
    for line in _about_limits(cluster, limits, trouble):
        click.echo(line)
    _say_mistakes(cluster.mistakes)


def _say_mistakes(mistakes: Iterable[Mistake]) -> None:
    for mistake in dict.fromkeys(mistakes):
        click.echo(str(mistake), err=True)


def _look(schedulers: tuple[str, ...], *, images: bool = True) -> dict[str, Presence]:
    """All at the same time: one that hangs holds up no other."""
    from concurrent.futures import ThreadPoolExecutor

    from outlast.schedulers.discovery import containers, look_for

    looks: dict[str, Callable[[], Presence]] = {
        kind: _this_machine if kind == "local" else partial(look_for, kind, _PATIENCE) for kind in schedulers
    }
    if images:
        looks["apptainer"] = partial(containers, _PATIENCE)
    with ThreadPoolExecutor(len(looks)) as pool:
        replies = {kind: pool.submit(look) for kind, look in looks.items()}
        return {kind: reply.result() for kind, reply in replies.items()}


def _this_machine() -> Presence:
    from outlast.local_cluster.hosts import this_machine
    from outlast.schedulers.discovery import Presence
    from outlast.spec.resource_checks import show_slots

    ((name, host),) = this_machine().items()
    return Presence(notes=("%s, %s" % (name, show_slots(host.cpus, host.gpus)),))


def _lines(kind: str, found: Presence) -> Iterator[str]:
    good = [*([found.version] if found.version else []), *found.notes]
    if good or not found.problems:
        yield "%-10s %s" % (kind, "; ".join(good) or "found")
    for problem in found.problems:
        yield "%-10s %s" % (kind, problem)


def _origin(cluster: KnownCluster) -> dict[str, Any]:
    profile = cluster.profile
    return {
        "name": profile.name,
        "scheduler": profile.scheduler or None,
        "file": cluster.file or None,
        "line": cluster.line,
    }


def _place(cluster: KnownCluster) -> str:
    if not cluster.file:
        return "built in"
    wrong = len(cluster.mistakes)
    told = ", with %s" % counted(wrong, "mistake") if wrong else ""
    return "%s:%s%s" % (cluster.file, cluster.line, told)


def _settings(cluster: KnownCluster) -> Iterator[tuple[str, Any]]:
    """What holds, given or by default; keys that are not for this scheduler are left out."""
    from outlast.node.staging.plan import DataSite
    from outlast.schedulers.profile import Profile
    from outlast.spec.cluster_library import known_hosts
    from outlast.spec.profiles import is_for

    profile = cluster.profile
    if profile.scheduler == "local":
        yield "hosts", {name: asdict(host) for name, host in known_hosts(profile).items()}
    of_data = {one.name for one in fields(DataSite)}
    for one in sorted(fields(Profile), key=lambda one: one.name in of_data):  # the scheduler's words first
        if one.name != "name" and is_for(one.name, profile.scheduler):
            yield one.name, getattr(profile.site, one.name)


def _is_set(value: Any) -> bool:
    return value is not None and value not in ("", ())


def _shown(key: str, value: Any) -> str:
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


def _about_limits(cluster: KnownCluster, limits: list[QueueLimit], trouble: str) -> Iterator[str]:
    from outlast.units import show_limit, write_duration

    if trouble:
        yield "its limits are not known: %s" % trouble
    longest = cluster.profile.site.longest
    for limit in limits:
        where = "%s%s" % (limit.name, " (the default)" if limit.default else "")
        if limit.longest is None:
            yield "%s: the limit is %s" % (where, limit.written)
            continue
        said = "%s: jobs end after %s" % (where, show_limit(limit.longest))
        used = cluster.profile.site.queue == limit.name or limit.default
        if used and (longest is None or longest > limit.longest):
            said += "; write longest: %s into the profile" % write_duration(limit.longest)
        yield said
