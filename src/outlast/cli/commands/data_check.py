"""`outlast data check`: check every source of an experiment's data; fetch nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import ERROR, FAILED
from outlast.cli.common import (
    cluster_option,
    directory_argument,
    json_option,
    show_argument,
    table,
    wrap_line,
    write_json,
)
from outlast.cli.source_probe import ItemProbe, ProbeReply, probe_items
from outlast.text import counted, printable
from outlast.units import show_size

if TYPE_CHECKING:
    from outlast.spec import Parsed


@click.command()
@directory_argument
@cluster_option
@json_option
@click.pass_context
def command(context: click.Context, directory: Path, cluster: str | None, as_json: bool) -> None:
    """Check every data source of the experiment in DIR from this machine. Fetches nothing.

    Checks that the sources respond and accept the token, that sizes and digests match the pinned ones and
    agree between mirrors, and that the data fits. Exits with 0 if there are no problems, with 1 if there are.
    """
    from outlast.cli.commands.check import validate
    from outlast.cli.data_common import data_access_of

    parsed, mistakes = validate(directory, cluster)
    if parsed is None:
        for mistake in mistakes:
            click.echo(str(mistake), err=True)
        context.exit(ERROR)
    probes = probe_items(parsed.spec.data, parsed.data_methods, data_access_of(parsed.cluster.site))
    space_problems = list(_check_space(parsed, probes))
    problems = [*(text for probe in probes for text in probe.problems), *space_problems]
    if as_json:
        write_json({"ok": not problems, "data": [one.to_dict() for one in probes], "room": space_problems})
    elif not probes:
        click.echo("params.yaml has no `data:`; there is nothing to check")
    else:
        _print_probes(probes, space_problems, show_argument(directory))
    context.exit(FAILED if problems else 0)


def _print_probes(probes: list[ItemProbe], space_problems: list[str], directory: str) -> None:
    for probe in probes:
        click.echo("%s: method %s: %s" % (probe.item.name, probe.method.method, probe.method.why))
        # The first column indents the table; the URL comes last, where a narrow terminal cuts it.
        rows = [("", *_cells(one), printable(one.source)) for one in probe.replies]
        click.echo(table(("", "STATUS", "SIZE", "DIGEST", "SOURCE"), rows, right=(2,)))
        for note in probe.notes:
            click.echo(wrap_line("  note: %s" % note, 4))
        for problem in probe.problems:
            click.echo("  %s %s" % (click.style("problem:", fg="red"), printable(problem)))
    for problem in space_problems:
        click.echo("%s %s" % (click.style("problem:", fg="red"), problem))
    number = sum(len(one.problems) for one in probes) + len(space_problems)
    if number:
        click.echo("%s" % counted(number, "problem"))
    elif any(not one.item.digests for one in probes):
        click.echo(
            "No problems. Next: outlast data pin%s   # writes the digests into params.yaml" % directory
        )
    else:
        click.echo("No problems.")


def _cells(reply: ProbeReply) -> tuple[str, str, str]:
    if reply.version is None:
        return (reply.kind, "-", "-")
    size = show_size(reply.version.size) if reply.version.size is not None else "unknown"
    status = "ok, with a token" if reply.token else "ok"
    return (status, size, ", ".join(reply.version.digests) or "none")


def _check_space(parsed: Parsed, probes: list[ItemProbe]) -> Iterator[str]:
    """Yield where the data does not fit, as far as sizes are known; unpacked data needs more."""
    from outlast.node.staging.cache.entry import free_space
    from outlast.spec.data_keys import needs_disk

    sizes = {one.item.name: one.size for one in probes if needs_disk(one.item) and one.size}
    total, site = sum(sizes.values()), parsed.cluster.site
    disk = parsed.spec.resources.disk
    # With a cache, the data is there and not in the disk space that the job requests.
    if not site.cache and total > disk:
        yield "%s of data do not fit into resources.disk (%s)" % (show_size(total), show_size(disk))
    if site.cache_size is not None and total > site.cache_size:
        yield "%s of data do not fit into cache_size (%s)" % (show_size(total), show_size(site.cache_size))
    cache = os.path.expandvars(site.cache)
    if site.cache and "$" not in cache and Path(cache).is_dir() and free_space(cache) < total:
        free: Any = show_size(free_space(cache))
        yield "%s of data, but %s free in %s; jobs will remove unused entries first" % (
            show_size(total),
            free,
            cache,
        )
