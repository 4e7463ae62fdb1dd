"""`outlast data cache`: what a cache of data holds, and making room in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import clock, here_option, json_option, table, write_json
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.text import counted, printable
from outlast.units import show_size

if TYPE_CHECKING:
    from outlast.node.staging.cache.data_cache import DataCache


@click.command()
@click.option("--cluster", metavar="NAME", help="The cache of this cluster; else of the one in params.yaml.")
@click.option("--path", type=click.Path(path_type=Path), metavar="DIR", help="The cache in this folder.")
@click.option("--clear", is_flag=True, help="Remove all that nobody uses.")
@click.option("--keep", metavar="SIZE", help="Remove what was used longest ago until so much is left.")
@here_option
@json_option
def command(
    cluster: str | None, path: Path | None, clear: bool, keep: str | None, directory: Path, as_json: bool
) -> None:
    """List what a cache of data holds. What is in use is never removed."""
    from outlast.node.staging.cache.data_cache import DataCache
    from outlast.node.staging.cache.entry import free_space

    if clear and keep is not None:
        raise BadInput("--clear and --keep: say one of them")
    if cluster is not None and path is not None:
        raise BadInput("--cluster and --path: say one of them")
    root = path if path is not None else _cache_of(cluster, directory)
    if not root.is_dir():
        if not as_json:
            click.echo("%s: there is no cache yet; it is made when data first comes" % root)
        else:
            write_json(_told(root, [], [], [], None))
        return
    store = DataCache(str(root))
    removed: list[dict[str, Any]] = []
    if clear or keep is not None:
        removed = list(_make_room(store, -1 if keep is None else _size(keep), clear))
    told = _told(
        root,
        list(_entries(store)),
        [asdict(one) for one in store.unfinished()],
        removed,
        free_space(str(root)),
    )
    if as_json:
        write_json(told)
    else:
        _show(told)


def _told(
    root: Path, entries: list[Any], arriving: list[Any], removed: list[Any], free: int | None
) -> dict[str, Any]:
    total = sum(one["size"] for one in (*entries, *arriving))
    return {
        "path": str(root),
        "entries": entries,
        "arriving": arriving,
        "removed": removed,
        "total": total,
        "free": free,
    }


def _show(told: dict[str, Any]) -> None:
    rows = [
        (one["key"][:24], show_size(one["size"]), clock(one["used"]), _state(one), printable(one["source"]))
        for one in told["entries"]
    ]
    rows += [(one["key"][:24], show_size(one["size"]), "-", _state(one), "") for one in told["arriving"]]
    if rows:
        click.echo(table(("WHAT", "SIZE", "LAST USED", "STATE", "FROM"), rows, right=(1,)))
    if told["removed"]:
        size = show_size(sum(one["size"] for one in told["removed"]))
        count = len(told["removed"])
        click.echo("%s removed, %s" % ("1 entry" if count == 1 else "%d entries" % count, size))
    click.echo(
        "%s: %s in %s, %s free"
        % (told["path"], show_size(told["total"]), counted(len(rows), "item"), show_size(told["free"]))
    )


def _state(one: Mapping[str, Any]) -> str:
    if "by" in one:
        return "arriving at %s" % one["by"] if one["by"] else "unfinished"
    return "in use" if one["in_use"] else ""


def _cache_of(name: str | None, directory: Path) -> Path:
    from outlast.spec import read
    from outlast.spec.cluster_library import Library
    from outlast.spec.data_methods import SHARING

    if name is None:
        if not (directory / "params.yaml").exists():
            raise BadInput("whose cache? Say --cluster NAME or --path DIR, or go to an experiment")
        profile = read(directory).cluster
    else:
        library = Library(directory)
        found = library.find(name)
        if found is None:
            raise BadInput('"%s" is not a cluster; %s' % (name, library.instead_of(name)))
        profile = found.profile
    if not profile.site.cache:
        if (directory / "params.yaml").exists() and profile.scheduler in SHARING:
            return Experiment(directory.absolute()).data
        raise BadInput(
            "cluster %s names no cache; write cache: into its profile, or say --path DIR" % profile.name
        )
    cache = os.path.expandvars(os.path.expanduser(profile.site.cache))  # noqa: PTH111
    if "$" in cache:
        raise BadInput(
            "%s is a place that only the nodes of cluster %s know; look there with --path"
            % (cache, profile.name)
        )
    return Path(cache)


def _size(text: str) -> int:
    from outlast import units

    try:
        return units.parse_size(text)
    except ValueError as error:
        raise BadInput("--keep: %s" % error) from error


def _entries(store: DataCache) -> Iterator[dict[str, Any]]:
    for one in reversed(store.entries()):
        told = asdict(one)
        del told["path"]
        yield told


def _make_room(store: DataCache, keep: int, everything: bool) -> Iterator[dict[str, Any]]:
    """The one that was used longest ago goes first; unfinished ones only where all are to go."""
    entries = store.entries()
    held = sum(entry.size for entry in entries)
    for entry in entries:
        if held > keep and not entry.in_use and store.remove(entry):
            held -= entry.size
            yield {"key": entry.key, "size": entry.size}
    for one in store.drop_unfinished() if everything else ():
        yield {"key": one.key, "size": one.size}
