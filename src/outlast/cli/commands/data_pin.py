"""`outlast data pin`: digests and sizes into params.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import CANNOT, FAILED, INTERRUPTED
from outlast.cli.common import cluster_option, directory_argument, json_option, where, write_json
from outlast.cli.data_common import ADVICE
from outlast.cli.data_progress import TransferDisplay
from outlast.node.staging.errors import FetchFailed, SourceError
from outlast.node.staging.item import ALGORITHMS, DataItem

if TYPE_CHECKING:
    from outlast.cli.data_common import Means

Pins = Mapping[str, str | int]


@dataclass(frozen=True)
class Result:
    """What became of one entry: pinned, kept or failed."""

    name: str
    state: str
    detail: str
    pins: Pins

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "detail": self.detail, "pins": dict(self.pins)}


@click.command()
@directory_argument
@cluster_option
@click.option("--again", is_flag=True, help="Also what is pinned already.")
@click.option("--trust-source", is_flag=True, help="Take the sources' word; fetch nothing.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    directory: Path,
    cluster: str | None,
    again: bool,
    trust_source: bool,
    as_json: bool,
) -> None:
    """Write what the data of the experiment in DIR is into its params.yaml: sha256 and size.

    Each file is fetched once and hashed on the way; nothing is kept of it. Comments and layout of params.yaml
    stay as they are. Exits with 1 if something could not be pinned.
    """
    from outlast.cli.commands.check import examine
    from outlast.cli.data_common import means_of

    parsed, mistakes = examine(directory, cluster)
    if parsed is None:
        for mistake in mistakes:
            click.echo(str(mistake), err=True)
        context.exit(CANNOT)
    means, results = means_of(parsed.cluster.site), []
    try:
        for index, item in enumerate(parsed.spec.data):
            if item.digests and not again:
                results.append(Result(item.name, "kept", "%s is pinned" % " and ".join(item.digests), {}))
            else:
                results.append(_pin(directory, index, item, means, trust_source))
            if not as_json:
                _say(results[-1])
    except KeyboardInterrupt:
        done = sum(result.state == "pinned" for result in results)
        click.echo("interrupted; %d of %d are pinned" % (done, len(parsed.spec.data)), err=True)
        context.exit(INTERRUPTED)
    if as_json:
        write_json({"data": [result.to_dict() for result in results]})
    elif not results:
        click.echo("params.yaml has no data: to pin")
    elif all(result.state == "kept" for result in results):
        click.echo("nothing to do; `outlast data pin --again%s` pins them anew" % where(directory))
    context.exit(FAILED if any(result.state == "failed" for result in results) else 0)


def _say(result: Result) -> None:
    click.echo("%s: %s" % (result.name, result.detail), err=result.state == "failed")
    for key, value in result.pins.items():
        click.echo("    %s: %s" % (key, value))


def _pin(directory: Path, index: int, item: DataItem, means: Means, trust_source: bool) -> Result:
    from outlast.spec.pinning import CannotPin, pin

    # What is to be pinned anew proves nothing about itself.
    unpinned = replace(item, digests={}, size=None)
    algorithms = tuple(name for name in ALGORITHMS if name == "sha256" or name in item.digests)
    try:
        if trust_source:
            pins, how = _told(unpinned, means, tuple(item.digests))
        else:
            pins, how = _hashed(unpinned, means, algorithms)
    except FetchFailed as error:
        return Result(item.name, "failed", "%s; %s" % (error, ADVICE[error.cause.kind]), {})
    except (SourceError, ValueError) as error:
        return Result(item.name, "failed", str(error), {})
    try:
        _edit(directory, lambda text: pin(text, index, pins))
    except CannotPin as error:
        return Result(item.name, "failed", "%s; add these lines to it yourself" % error, pins)
    return Result(item.name, "pinned", how, pins)


def _hashed(item: DataItem, means: Means, algorithms: tuple[str, ...]) -> tuple[Pins, str]:
    """Raises GivenUp, ValueError."""
    from outlast.cli.data_common import Hashing, proved
    from outlast.node.staging.fetch.fetch import fetch

    watch, sink = TransferDisplay(item.name), Hashing(algorithms)
    with watch.showing():
        receipt = fetch(item, means.sources(item), sink, means.fetching, watch.tell)
    told = "; %s" % proved(receipt) if receipt.vouched == "source" else ""
    return {**sink.results(), "size": receipt.bytes}, "pinned, as it was fetched now%s" % told


def _told(item: DataItem, means: Means, had: tuple[str, ...]) -> tuple[Pins, str]:
    """The strongest digest that a source tells, and those that were pinned before: none may stay that is old.

    Raises Trouble, ValueError.
    """
    troubles: list[SourceError] = []
    for source in means.sources(item):
        try:
            said = source.version()
        except SourceError as trouble:
            troubles.append(trouble)
            continue
        ranked = [name for name in ALGORITHMS if name in said.digests]
        if ranked and set(had) <= set(ranked):
            pins: dict[str, str | int] = {name: said.digests[name] for name in (*ranked[:1], *had)}
            pins.update({"size": said.size} if said.size is not None else {})
            return pins, "pinned, by the word of %s" % source.name
    if troubles:
        raise troubles[0]
    which = " and ".join(had) or "digest"
    raise ValueError("no source tells its %s; without --trust-source it is fetched and hashed" % which)


def _edit(directory: Path, change: Any) -> None:
    """params.yaml is read again for every entry: somebody may have it open. Raises CannotPin, OSError."""
    from outlast.filesystem import write_durably

    # Through a link to the file itself, which keeps its mode.
    path = (directory / "params.yaml").resolve()
    before = path.read_bytes()
    mode = path.stat().st_mode
    write_durably(path, change(before.decode("utf-8")).encode("utf-8"))
    path.chmod(mode & 0o7777)
