"""`outlast data fetch`: one file or archive, with the code that jobs use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import json_option, write_json
from outlast.cli.data_common import (
    ADVICE,
    account,
    digest_options,
    duration,
    patience_option,
    pinned,
    token_options,
    tokens,
)
from outlast.cli.data_progress import TransferDisplay, in_words
from outlast.errors import BadInput
from outlast.node.staging.errors import FINAL, FetchFailed
from outlast.node.staging.item import DataItem

if TYPE_CHECKING:
    from outlast.node.archives.unpacking import UnpackingSink
    from outlast.node.staging.fetch.part_file import PartFile
    from outlast.node.staging.fetch.receipt import Receipt
    from outlast.node.staging.sources.tokens import Tokens


@click.command()
@click.argument("url", metavar="URL")
@click.option("--mirror", "mirrors", multiple=True, metavar="URL", help="Another source of the same bytes.")
@digest_options
@click.option("--size", type=click.IntRange(min=0), metavar="BYTES", help="Its exact size.")
@click.option(
    "--unpack",
    type=click.Choice(["no", "yes", "nested"]),
    default="no",
    show_default=True,
    help="Unpack it on the way; `nested` unpacks archives inside it as well.",
)
@click.option(
    "--to", "to", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="The folder that it is put or unpacked into.",
)  # fmt: skip
@token_options
@click.option("--connections", type=click.IntRange(1, 32), default=4, show_default=True, help="At most.")
@patience_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    url: str,
    mirrors: tuple[str, ...],
    size: int | None,
    unpack: str,
    to: Path,
    connections: int,
    patience: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Fetch URL (https, http, osdf, pelican, file or a path) into DIR.

    What was interrupted goes on from where it stopped when the same command is typed again. Nothing has its
    final name before it is whole and checked. Exits with 1 if it did not arrive.
    """
    from outlast.node.staging.fetch.fetch_settings import FetchSettings

    wanted = DataItem((url, *mirrors), pinned(options), size, unpack)
    meant = tokens(options)
    settings = FetchSettings(patience=duration(patience), connections=connections)
    there = unpack == "no" and os.path.lexists(to / wanted.name)
    watch = TransferDisplay(wanted.name)
    try:
        with watch.showing():
            if there:
                receipt: Receipt | None = _look_at(wanted, str(to / wanted.name), watch)
            else:
                receipt = _fetch(wanted, to, meant, settings, watch)
    except KeyboardInterrupt:
        stopped = " at %s" % in_words(watch.told, with_source=False).split(",")[0] if watch.told else ""
        click.echo("interrupted%s; type the same command again to go on from there" % stopped, err=True)
        context.exit(INTERRUPTED)
    except FetchFailed as error:
        if as_json:
            kind = error.cause.kind
            write_json({"ok": False, "error": str(error), "kind": kind.value, "advice": ADVICE[kind]})
        else:
            kept = watch.told is not None and watch.told.done and error.cause.kind not in FINAL
            again = "\nwhat has come is kept: the same command goes on from there" if kept else ""
            click.echo("%s\n%s%s" % (error, ADVICE[error.cause.kind], again), err=True)
        context.exit(FAILED)
    except ValueError as error:
        raise BadInput(str(error)) from error
    path = str(to if unpack != "no" else to / wanted.name)
    if as_json:
        told = receipt.to_dict() if receipt is not None else {}
        write_json({"ok": True, "path": path, "name": wanted.name, **told})
        return
    click.echo("%s %s" % (path, "is there" if unpack == "no" else "has what was in %s" % wanted.name))
    for line in account(receipt) if receipt is not None else ():
        click.echo("  " + line)


def _fetch(
    wanted: DataItem, to: Path, meant: Tokens, settings: Any, watch: TransferDisplay
) -> Receipt | None:
    """None: all of it had come before, and was only to be shown. Raises GivenUp, ValueError, OSError."""
    from outlast.node.archives.unpacking import UnpackingSink
    from outlast.node.staging.fetch.fetch import fetch, identify
    from outlast.node.staging.fetch.part_file import PartFile
    from outlast.node.staging.http.http_settings import HttpSettings
    from outlast.node.staging.sources.resolve import sources_for

    sources = sources_for(wanted, HttpSettings(), meant)
    sink: PartFile | UnpackingSink
    if wanted.unpack == "no":
        sink = PartFile(str(to), wanted.name)
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        sink = UnpackingSink(str(to), wanted.name, wanted.unpack == "nested")
    try:
        if isinstance(sink, UnpackingSink) and sink.recover(identify(wanted, sources, settings, watch.tell)):
            return None
        return fetch(wanted, sources, sink, settings, watch.tell)
    finally:
        sink.close()


def _look_at(wanted: DataItem, path: str, watch: TransferDisplay) -> Receipt:
    """What has the name already is compared with what is pinned, and never overwritten."""
    from outlast.cli.data_common import Hashing
    from outlast.node.staging.fetch.fetch import fetch
    from outlast.node.staging.sources.file_source import FileSource

    otherwise = "remove it, or choose another folder with --to"
    if not wanted.digests:
        raise BadInput("%s is there already; %s" % (path, otherwise))
    try:
        return fetch(wanted, [FileSource(path)], Hashing(), None, watch.tell)
    except FetchFailed as error:
        raise BadInput(
            "%s is there already, and is something else: %s; %s" % (path, error.cause.detail, otherwise)
        ) from error
