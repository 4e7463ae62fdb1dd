"""`outlast data pin`: write digests and sizes of data into params.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import ERROR, FAILED, INTERRUPTED
from outlast.cli.common import cluster_option, directory_argument, json_option, show_argument, write_json
from outlast.cli.data_common import PIN_ADVICE
from outlast.cli.data_progress import TransferDisplay
from outlast.node.staging.errors import FetchFailed, SourceError
from outlast.node.staging.item import ALGORITHMS, DataItem

if TYPE_CHECKING:
    from outlast.cli.data_common import DataAccess

Pins = Mapping[str, str | int]


@dataclass(frozen=True)
class Result:
    """The result for one entry; `state` is pinned, kept or failed."""

    name: str
    state: str
    detail: str
    pins: Pins

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "detail": self.detail, "pins": dict(self.pins)}


@click.command()
@directory_argument
@cluster_option
@click.option("--again", is_flag=True, help="Also pin what is pinned already.")
@click.option(
    "--trust-source", is_flag=True, help="Use the digests that the sources report. Fetches nothing."
)
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
    """Write sha256 and size of the data of the experiment in DIR into its params.yaml.

    Fetches and hashes each file without keeping it. Comments and layout of params.yaml stay as they are.
    Exits with 1 if something could not be pinned.
    """
    from outlast.cli.commands.check import validate
    from outlast.cli.data_common import data_access_of

    parsed, mistakes = validate(directory, cluster)
    if parsed is None:
        for mistake in mistakes:
            click.echo(str(mistake), err=True)
        context.exit(ERROR)
    access, results = data_access_of(parsed.cluster.site), []
    try:
        for index, item in enumerate(parsed.spec.data):
            if item.digests and not again:
                results.append(
                    Result(item.name, "kept", "already pinned (%s)" % " and ".join(item.digests), {})
                )
            else:
                results.append(_pin(directory, index, item, access, trust_source))
            if not as_json:
                _print_result(results[-1])
    except KeyboardInterrupt:
        done = sum(result.state == "pinned" for result in results)
        click.echo("interrupted; pinned %d of %d" % (done, len(parsed.spec.data)), err=True)
        context.exit(INTERRUPTED)
    if as_json:
        write_json({"data": [result.to_dict() for result in results]})
    elif not results:
        click.echo("params.yaml has no `data:`; there is nothing to pin")
    elif all(result.state == "kept" for result in results):
        click.echo("nothing to do; `outlast data pin --again%s` pins them again" % show_argument(directory))
    context.exit(FAILED if any(result.state == "failed" for result in results) else 0)


def _print_result(result: Result) -> None:
    # The error of a fetch begins with the name.
    named = result.detail.startswith(result.name + " ")
    text = result.detail if named else "%s: %s" % (result.name, result.detail)
    click.echo(text, err=result.state == "failed")
    for key, value in result.pins.items():
        click.echo("    %s: %s" % (key, value))


def _pin(directory: Path, index: int, item: DataItem, access: DataAccess, trust_source: bool) -> Result:
    """Pin one entry of `data:`, the one at `index`."""
    from outlast.spec.pinning import CannotPin, pin

    # Old digests must not be used to verify the new ones.
    unpinned = replace(item, digests={}, size=None)
    algorithms = tuple(name for name in ALGORITHMS if name == "sha256" or name in item.digests)
    try:
        if trust_source:
            pins, how = _reported_pins(unpinned, access, tuple(item.digests))
        else:
            pins, how = _computed_pins(unpinned, access, algorithms)
    except FetchFailed as error:
        return Result(item.name, "failed", "%s; %s" % (error, PIN_ADVICE[error.cause.kind]), {})
    except (SourceError, ValueError) as error:
        return Result(item.name, "failed", str(error), {})
    try:
        _edit(directory, lambda text: pin(text, index, pins))
    except CannotPin as error:
        return Result(item.name, "failed", "%s; add these lines by hand" % error, pins)
    return Result(item.name, "pinned", how, pins)


def _computed_pins(item: DataItem, access: DataAccess, algorithms: tuple[str, ...]) -> tuple[Pins, str]:
    """Fetch and hash an item; return its pins and a description. Raises FetchFailed and ValueError."""
    from outlast.cli.data_common import HashingSink, describe_verification
    from outlast.node.staging.fetch.fetch import fetch

    display, sink = TransferDisplay(item.name), HashingSink(algorithms)
    with display.showing():
        receipt = fetch(item, access.sources(item), sink, access.fetching, display.update)
    verified = "; %s" % describe_verification(receipt) if receipt.vouched == "source" else ""
    return {**sink.results(), "size": receipt.bytes}, "fetched, hashed and pinned%s" % verified


def _reported_pins(item: DataItem, access: DataAccess, replaced: tuple[str, ...]) -> tuple[Pins, str]:
    """Return the strongest digest that a source reports, and a description.

    Every algorithm in `replaced`, which was pinned before, must be reported as well: no old digest may stay.
    Raises SourceError and ValueError.
    """
    errors: list[SourceError] = []
    for source in access.sources(item):
        try:
            version = source.version()
        except SourceError as error:
            errors.append(error)
            continue
        ranked = [name for name in ALGORITHMS if name in version.digests]
        if ranked and set(replaced) <= set(ranked):
            pins: dict[str, str | int] = {name: version.digests[name] for name in (*ranked[:1], *replaced)}
            pins.update({"size": version.size} if version.size is not None else {})
            return pins, "pinned as reported by %s" % source.name
    if errors:
        raise errors[0]
    which = " and ".join(replaced) or "digest"
    raise ValueError("no source reports its %s; without --trust-source it is fetched and hashed" % which)


def _edit(directory: Path, change: Any) -> None:
    """Read params.yaml again, which may have been edited meanwhile, and write its changed text.

    Raises CannotPin and OSError.
    """
    from outlast.filesystem import write_durably

    # Follow a link to the file itself; keep its mode.
    path = (directory / "params.yaml").resolve()
    before = path.read_bytes()
    mode = path.stat().st_mode
    write_durably(path, change(before.decode("utf-8")).encode("utf-8"))
    path.chmod(mode & 0o7777)
