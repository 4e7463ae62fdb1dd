"""`outlast data fetch`: fetch a file or archive with the code that jobs use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import json_option, write_json
from outlast.cli.data_common import (
    ADVICE,
    describe_transfer,
    digest_options,
    parse_digests,
    parse_patience,
    parse_tokens,
    patience_option,
    token_options,
)
from outlast.cli.data_progress import TransferDisplay, describe_progress
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
@click.option(
    "--mirror", "mirrors", multiple=True, metavar="URL", help="Another source of the same file; repeatable."
)
@digest_options
@click.option("--size", type=click.IntRange(min=0), metavar="BYTES", help="Expected size.")
@click.option(
    "--unpack",
    type=click.Choice(["no", "yes", "nested"]),
    default="no",
    show_default=True,
    help="Unpack while fetching; `nested` also unpacks the archives inside.",
)
@click.option(
    "--to", "to", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Directory to write or unpack it into.",
)  # fmt: skip
@token_options
@click.option(
    "--connections",
    type=click.IntRange(1, 32),
    default=4,
    show_default=True,
    help="Most connections at once.",
)
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

    If it is interrupted, run the same command again to resume. Files get their final names only when they are
    complete and verified. Exits with 1 if the fetch failed.
    """
    from outlast.node.staging.fetch.fetch_settings import FetchSettings

    item = DataItem((url, *mirrors), parse_digests(options), size, unpack)
    tokens = parse_tokens(options)
    settings = FetchSettings(patience=parse_patience(patience), connections=connections)
    exists = unpack == "no" and os.path.lexists(to / item.name)
    display = TransferDisplay(item.name)
    try:
        with display.showing():
            if exists:
                receipt: Receipt | None = _verify_existing(item, str(to / item.name), display)
            else:
                receipt = _fetch(item, to, tokens, settings, display)
    except KeyboardInterrupt:
        latest = display.latest
        stopped = " at %s" % describe_progress(latest, with_source=False).split(",")[0] if latest else ""
        click.echo("interrupted%s; run the same command again to resume" % stopped, err=True)
        context.exit(INTERRUPTED)
    except FetchFailed as error:
        if as_json:
            kind = error.cause.kind
            write_json({"ok": False, "error": str(error), "kind": kind.value, "advice": ADVICE[kind]})
        else:
            latest = display.latest
            kept = latest is not None and latest.done and error.cause.kind not in FINAL
            again = "\nthe bytes so far are kept: run the same command again to resume" if kept else ""
            click.echo("%s\n%s%s" % (error, ADVICE[error.cause.kind], again), err=True)
        context.exit(FAILED)
    except ValueError as error:
        raise BadInput(str(error)) from error
    path = str(to if unpack != "no" else to / item.name)
    if as_json:
        facts = receipt.to_dict() if receipt is not None else {}
        write_json({"ok": True, "path": path, "name": item.name, **facts})
        return
    if unpack != "no":
        click.echo("unpacked %s into %s" % (item.name, path))
    else:
        click.echo("%s %s" % ("already there:" if exists else "fetched", path))
    for line in describe_transfer(receipt) if receipt is not None else ():
        click.echo("  " + line)


def _fetch(
    item: DataItem, to: Path, tokens: Tokens, settings: Any, display: TransferDisplay
) -> Receipt | None:
    """Fetch an item; return None if an earlier command had unpacked all of it and only had to publish it.

    Raises FetchFailed, ValueError and OSError.
    """
    from outlast.node.archives.unpacking import UnpackingSink
    from outlast.node.staging.fetch.fetch import fetch, identify
    from outlast.node.staging.fetch.part_file import PartFile
    from outlast.node.staging.http.http_settings import HttpSettings
    from outlast.node.staging.sources.resolve import sources_for

    sources = sources_for(item, HttpSettings(), tokens)
    sink: PartFile | UnpackingSink
    if item.unpack == "no":
        sink = PartFile(str(to), item.name)
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        sink = UnpackingSink(str(to), item.name, item.unpack == "nested")
    try:
        if isinstance(sink, UnpackingSink) and sink.recover(
            identify(item, sources, settings, display.update)
        ):
            return None
        return fetch(item, sources, sink, settings, display.update)
    finally:
        sink.close()


def _verify_existing(item: DataItem, path: str, display: TransferDisplay) -> Receipt:
    """Compare an existing file with the expected digests. Raises BadInput if it differs or none is given."""
    from outlast.cli.data_common import HashingSink
    from outlast.node.staging.fetch.fetch import fetch
    from outlast.node.staging.sources.file_source import FileSource

    otherwise = "remove it, or choose another directory with --to"
    if not item.digests:
        raise BadInput("%s already exists; %s" % (path, otherwise))
    try:
        return fetch(item, [FileSource(path)], HashingSink(), None, display.update)
    except FetchFailed as error:
        raise BadInput(
            "%s already exists and is a different file: %s; %s" % (path, error.cause.detail, otherwise)
        ) from error
