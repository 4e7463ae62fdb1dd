"""`outlast data cache`: list the entries of a data cache, or remove some."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import here_option, json_option, show_time, table, write_json
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.text import printable
from outlast.units import show_size

if TYPE_CHECKING:
    from outlast.node.staging.cache.data_cache import DataCache


@click.command()
@click.option("--cluster", metavar="NAME", help="Cache of this cluster; default: the one in params.yaml.")
@click.option("--path", type=click.Path(path_type=Path), metavar="DIR", help="Cache in this directory.")
@click.option("--clear", is_flag=True, help="Remove all entries that are not in use.")
@click.option("--keep", metavar="SIZE", help="Remove the least recently used entries until SIZE is left.")
@here_option
@json_option
def command(
    cluster: str | None, path: Path | None, clear: bool, keep: str | None, directory: Path, as_json: bool
) -> None:
    """List the entries of a data cache, or remove some. Entries in use are never removed."""
    from outlast.node.staging.cache.data_cache import DataCache
    from outlast.node.staging.cache.entry import free_space

    if clear and keep is not None:
        raise BadInput("use --clear or --keep, not both")
    if cluster is not None and path is not None:
        raise BadInput("use --cluster or --path, not both")
    root = path if path is not None else _find_cache(cluster, directory)
    if not root.is_dir():
        if not as_json:
            click.echo("%s: there is no cache yet; it is created when data is first fetched" % root)
        else:
            write_json(_as_json(root, [], [], [], None))
        return
    cache = DataCache(str(root))
    removed: list[dict[str, Any]] = []
    if clear or keep is not None:
        removed = list(_remove_entries(cache, -1 if keep is None else _parse_keep(keep), clear))
    listing = _as_json(
        root,
        list(_entries(cache)),
        [asdict(one) for one in cache.unfinished()],
        removed,
        free_space(str(root)),
    )
    if as_json:
        write_json(listing)
    else:
        _print_listing(listing)


def _as_json(
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


def _print_listing(listing: dict[str, Any]) -> None:
    rows = [
        (
            one["key"][:24],
            show_size(one["size"]),
            show_time(one["used"]),
            _show_state(one),
            printable(one["source"]),
        )
        for one in listing["entries"]
    ]
    rows += [
        (one["key"][:24], show_size(one["size"]), "-", _show_state(one), "") for one in listing["arriving"]
    ]
    if rows:
        click.echo(table(("ENTRY", "SIZE", "LAST USED", "STATE", "SOURCE"), rows, right=(1,)))
    if listing["removed"]:
        size = show_size(sum(one["size"] for one in listing["removed"]))
        click.echo("removed %s, %s" % (_count_entries(len(listing["removed"])), size))
    click.echo(
        "%s: %s in %s, %s free"
        % (
            listing["path"],
            show_size(listing["total"]),
            _count_entries(len(rows)),
            show_size(listing["free"]),
        )
    )


def _count_entries(number: int) -> str:
    return "1 entry" if number == 1 else "%d entries" % number


def _show_state(one: Mapping[str, Any]) -> str:
    if "by" in one:
        return "unfinished, fetched by %s" % one["by"] if one["by"] else "unfinished"
    if one["newer"]:
        return "made by a newer version of Outlast"
    return "in use" if one["in_use"] else ""


def _find_cache(name: str | None, directory: Path) -> Path:
    """Return the cache of the cluster `name`, or of the experiment in `directory`. Raises BadInput."""
    from outlast.spec import read
    from outlast.spec.cluster_library import Library
    from outlast.spec.data_methods import SHARING

    if name is None:
        if not (directory / "params.yaml").exists():
            raise BadInput("which cache? Use --cluster NAME or --path DIR, or run this in an experiment")
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
            "cluster %s has no cache; add `cache:` to its profile, or use --path DIR" % profile.name
        )
    cache = os.path.expandvars(os.path.expanduser(profile.site.cache))  # noqa: PTH111
    if "$" in cache:
        raise BadInput(
            "%s is defined only on the nodes of cluster %s; run this there with --path DIR"
            % (cache, profile.name)
        )
    return Path(cache)


def _parse_keep(text: str) -> int:
    from outlast import units

    try:
        return units.parse_size(text)
    except ValueError as error:
        raise BadInput("--keep: %s" % error) from error


def _entries(cache: DataCache) -> Iterator[dict[str, Any]]:
    """Yield the entries, the most recently used first."""
    for one in reversed(cache.entries()):
        entry = asdict(one)
        del entry["path"]
        yield entry


def _remove_entries(cache: DataCache, keep: int, everything: bool) -> Iterator[dict[str, Any]]:
    """Remove the least recently used entries until `keep` bytes are left; yield what was removed.

    Unfinished entries are removed only if `everything`.
    """
    entries = cache.entries()
    left = sum(entry.size for entry in entries)
    for entry in entries:
        if left > keep and not entry.in_use and cache.remove(entry):
            left -= entry.size
            yield {"key": entry.key, "size": entry.size}
    for one in cache.drop_unfinished() if everything else ():
        yield {"key": one.key, "size": one.size}
