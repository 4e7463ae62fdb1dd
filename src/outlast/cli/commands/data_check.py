"""`outlast data check`: every source is asked, nothing is fetched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import CANNOT, FAILED
from outlast.cli.common import cluster_option, directory_argument, json_option, table, where, write_json
from outlast.cli.source_probe import Inquiry, ProbeReply, inquire
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
    """Ask every source of the data of the experiment in DIR what it has, from this machine; fetch nothing.

    Do they answer? Are size and digest what is pinned, and the same for all mirrors? Is the token taken, and
    does it all fit? Exits with 0 if all is well, with 1 if something is wrong.
    """
    from outlast.cli.commands.check import examine
    from outlast.cli.data_common import means_of

    parsed, mistakes = examine(directory, cluster)
    if parsed is None:
        for mistake in mistakes:
            click.echo(str(mistake), err=True)
        context.exit(CANNOT)
    inquiries = inquire(parsed.spec.data, parsed.data_methods, means_of(parsed.cluster.site))
    room = list(_room(parsed, inquiries))
    problems = [*(text for inquiry in inquiries for text in inquiry.problems), *room]
    if as_json:
        write_json({"ok": not problems, "data": [one.to_dict() for one in inquiries], "room": room})
    elif not inquiries:
        click.echo("params.yaml has no data: to ask for")
    else:
        _show(inquiries, room, where(directory))
    context.exit(FAILED if problems else 0)


def _show(inquiries: list[Inquiry], room: list[str], directory: str) -> None:
    for inquiry in inquiries:
        click.echo("%s comes by %s: %s" % (inquiry.wanted.name, inquiry.way.method, inquiry.way.why))
        rows = [(printable(one.source), *_cells(one)) for one in inquiry.replies]
        lines = table(("SOURCE", "ANSWER", "SIZE", "DIGEST"), rows, right=(2,)).splitlines()
        click.echo("\n".join("  " + line for line in lines))
        for note in inquiry.notes:
            click.echo("  %s" % note)
        for problem in inquiry.problems:
            click.echo("  %s %s" % (click.style("wrong:", fg="red"), printable(problem)))
    for problem in room:
        click.echo("%s %s" % (click.style("wrong:", fg="red"), problem))
    wrong = sum(len(one.problems) for one in inquiries) + len(room)
    if wrong:
        click.echo("%s" % counted(wrong, "problem"))
    elif any(not one.wanted.digests for one in inquiries):
        click.echo("All is well. Next: outlast data pin%s, so that it stays so" % directory)
    else:
        click.echo("All is well.")


def _cells(reply: ProbeReply) -> tuple[str, str, str]:
    if reply.version is None:
        return (reply.kind, "-", "-")
    size = show_size(reply.version.size) if reply.version.size is not None else "not told"
    answer = "yes, with a token" if reply.token else "yes"
    return (answer, size, ", ".join(reply.version.digests) or "none")


def _room(parsed: Parsed, inquiries: list[Inquiry]) -> Iterator[str]:
    """Whether it fits, as far as sizes are known: what is unpacked takes as much again or more."""
    from outlast.node.staging.cache.entry import free_space
    from outlast.spec.data_keys import needs_disk

    wants = {one.wanted.name: one.size for one in inquiries if needs_disk(one.wanted) and one.size}
    total, site = sum(wants.values()), parsed.cluster.site
    disk = parsed.spec.resources.disk
    # With a cache the data is there, and not in what the job asked for.
    if not site.cache and total > disk:
        yield "%s of data do not fit into resources.disk, %s" % (show_size(total), show_size(disk))
    if site.cache_size is not None and total > site.cache_size:
        yield "%s of data do not fit into cache_size, %s" % (show_size(total), show_size(site.cache_size))
    cache = os.path.expandvars(site.cache)
    if site.cache and "$" not in cache and Path(cache).is_dir() and free_space(cache) < total:
        free: Any = show_size(free_space(cache))
        yield "%s of data, and %s free in %s, where caches give way first" % (show_size(total), free, cache)
