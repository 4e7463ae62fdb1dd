"""Options that several `data` commands have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.errors import BadInput
from outlast.node.staging.item import ALGORITHMS

if TYPE_CHECKING:
    from outlast.node.staging.sources.tokens import Tokens

_Function = TypeVar("_Function", bound=Callable[..., Any])

patience_option = click.option(
    "--patience",
    default="10min",
    show_default=True,
    metavar="DURATION",
    help="Give up after so long without a new byte.",
)


def digest_options(function: _Function) -> _Function:
    """`--sha256`, …, `--adler32`: by the names of the algorithms."""
    options = [
        click.option("--%s" % name, name, metavar="DIGEST", help="Its %s, hexadecimal or base64." % name)
        for name in ALGORITHMS
    ]
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def token_options(function: _Function) -> _Function:
    hosts = click.option(
        "--token-host", "token_hosts", multiple=True, metavar="HOST", help="A host that may have the token."
    )
    file = click.option("--token-file", metavar="FILE", help="Where the token is; else the usual places.")
    return file(hosts(function))


def pinned(options: Mapping[str, Any]) -> dict[str, str]:
    from outlast.node.staging.fetch.digests import normalised

    found = {}
    for name in ALGORITHMS:
        if options.get(name):
            try:
                found[name] = normalised(name, options[name])
            except ValueError as error:
                raise BadInput("--%s: %s" % (name, error)) from error
    return found


def tokens(options: Mapping[str, Any]) -> Tokens:
    from outlast.node.staging.sources.tokens import Tokens

    file, hosts = options["token_file"] or "", tuple(options["token_hosts"])
    if file and not hosts:
        raise BadInput("--token-file: say which hosts may have the token: --token-host data.example.org")
    return Tokens(hosts, file)


def duration(text: str) -> float:
    from outlast import units

    try:
        return units.duration(text)
    except ValueError as error:
        raise BadInput("--patience: %s" % error) from error
