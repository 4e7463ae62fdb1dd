"""Shared by the `data` commands: options, access to sources, a sink that hashes, and messages."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.errors import BadInput
from outlast.node.archives.sink import Block
from outlast.node.staging.errors import ErrorKind
from outlast.node.staging.fetch.digests import Digests, normalise_digest
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.fetch.receipt import Receipt
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import ALGORITHMS
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens
from outlast.text import printable
from outlast.units import parse_duration, show_duration, show_size

if TYPE_CHECKING:
    from outlast.node.staging.item import DataItem
    from outlast.node.staging.sources.base import Source
    from outlast.schedulers.profile import Profile

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Options

patience_option = click.option(
    "--patience",
    default="10min",
    show_default=True,
    metavar="DURATION",
    help="Give up after this time without a new byte.",
)


def digest_options(function: _Function) -> _Function:
    """Add the options `--sha256` to `--adler32`, one for each algorithm."""
    options = [
        click.option("--%s" % name, name, metavar="DIGEST", help="Expected %s, hexadecimal or base64." % name)
        for name in ALGORITHMS
    ]
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def token_options(function: _Function) -> _Function:
    """Add the options `--token-file` and `--token-host`."""
    hosts = click.option(
        "--token-host",
        "token_hosts",
        multiple=True,
        metavar="HOST",
        help="Host that may receive the token; repeatable.",
    )
    file = click.option(
        "--token-file", metavar="FILE", help="File with the token; default: the standard places."
    )
    return file(hosts(function))


def parse_digests(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of `digest_options`. Raises BadInput."""
    found = {}
    for name in ALGORITHMS:
        if options.get(name):
            try:
                found[name] = normalise_digest(name, options[name])
            except ValueError as error:
                raise BadInput("--%s: %s" % (name, error)) from error
    return found


def parse_tokens(options: Mapping[str, Any]) -> Tokens:
    """Return the values of `token_options`. Raises BadInput."""
    file, hosts = options["token_file"] or "", tuple(options["token_hosts"])
    if file and not hosts:
        raise BadInput(
            "--token-file: name the hosts that may receive the token: --token-host data.example.org"
        )
    return Tokens(hosts, file)


def parse_patience(text: str) -> float:
    """Return the value of `patience_option` in seconds. Raises BadInput."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadInput("--patience: %s" % error) from error


# Access to sources


@dataclass(frozen=True)
class DataAccess:
    """The settings and tokens with which data is fetched from this machine."""

    http: HttpSettings
    tokens: Tokens
    fetching: FetchSettings

    def sources(self, item: DataItem) -> list[Source]:
        """Return the sources of an item. Raises ValueError."""
        return sources_for(item, self.http, self.tokens)


def data_access_of(site: Profile) -> DataAccess:
    """Return the access to data as a cluster's profile configures it."""
    file = os.path.expanduser(site.token_file)  # noqa: PTH111
    return DataAccess(
        HttpSettings(site.stall, site.stall, site.stall),
        Tokens(site.token_hosts, file, site.token_command),
        FetchSettings(patience=site.patience, connections=site.connections),
    )


class HashingSink:
    """A sink that computes digests and keeps nothing; see `outlast.node.archives.sink.Sink`.

    It cannot resume: each fetch begins at the first byte.
    """

    def __init__(self, algorithms: tuple[str, ...] = ()) -> None:
        self._algorithms = algorithms
        self._digests = Digests(algorithms)

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        self.restart()
        return 0

    def write(self, block: Block) -> None:
        self._digests.update(block)

    def restart(self) -> None:
        self._digests = Digests(self._algorithms)

    def finish(self) -> None:
        """Do nothing: there is nothing to publish."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def results(self) -> Mapping[str, str]:
        """Return the digests by algorithm."""
        return self._digests.results()


# Messages

#: What to do about each kind of error of `data fetch`.
ADVICE = {
    ErrorKind.NO_ANSWER: "check that this machine can reach the host, or add another source: --mirror URL",
    ErrorKind.STALL: "try again later, or add another source: --mirror URL",
    ErrorKind.CRAWL: "try again later, or add another source: --mirror URL",
    ErrorKind.RESET: "try again later, or add another source: --mirror URL",
    ErrorKind.TRUNCATED: "try again later, or add another source: --mirror URL",
    ErrorKind.SERVER_ERROR: "try again later, or add another source: --mirror URL",
    ErrorKind.BUSY: "try again later, or add another source: --mirror URL",
    ErrorKind.REFUSED: "provide a valid token: --token-file FILE --token-host HOST",
    ErrorKind.PROXY_REFUSED: "put the proxy's user and password into http_proxy and https_proxy: "
    "http://USER:PASSWORD@HOST:PORT",
    ErrorKind.MISSING_FOR_NOW: "check the URL; if it is right, try again later",
    ErrorKind.MISSING: "check the URL",
    ErrorKind.CHANGED: "wait until the file no longer changes, then fetch it again",
    ErrorKind.WRONG_LENGTH: "check that the pinned size belongs to this file",
    ErrorKind.WRONG_DIGEST: "check that the digest belongs to this file; if so, the source has another file",
    ErrorKind.NO_RANGES: "add a source that can resume (range requests): --mirror URL",
    ErrorKind.NONSENSE: "check what responds there: curl -I URL",
    ErrorKind.UNTRUSTED: "if you trust its certificate authority, set SSL_CERT_FILE=FILE to its certificate",
    ErrorKind.DISK_FULL: "free some space, or choose another directory",
    ErrorKind.BAD_ARCHIVE: "check that it is an archive; --unpack no keeps the file as it is",
    ErrorKind.FORBIDDEN: "only items of a gateway's requests have such rules: see template.yaml",
    ErrorKind.TOO_LARGE: "only items of a gateway's requests have such a limit: see template.yaml",
}

_ANOTHER_URL = "or list another source in params.yaml: `url: [URL, URL]`"
#: The same for `data pin`, which reads sources and tokens from files and writes no data.
PIN_ADVICE = {
    **ADVICE,
    ErrorKind.NO_ANSWER: "check that this machine can reach the host, " + _ANOTHER_URL,
    **dict.fromkeys(
        (
            ErrorKind.STALL,
            ErrorKind.CRAWL,
            ErrorKind.RESET,
            ErrorKind.TRUNCATED,
            ErrorKind.SERVER_ERROR,
            ErrorKind.BUSY,
        ),
        "try again later, " + _ANOTHER_URL,
    ),
    ErrorKind.REFUSED: "add a valid token to the cluster's profile in clusters.yaml: "
    "`token: {file: FILE, hosts: [HOST]}`",
    ErrorKind.CHANGED: "wait until the file no longer changes, then pin it again",
    ErrorKind.NO_RANGES: "list a source that can resume (range requests) in params.yaml: `url: [URL, URL]`",
    ErrorKind.DISK_FULL: "free some space",
    ErrorKind.BAD_ARCHIVE: "check that it is an archive; `unpack: no` in params.yaml keeps the file as it is",
}


def describe_verification(receipt: Receipt) -> str:
    """Return which digests were compared with what, or that none was known."""
    if receipt.vouched == "pinned":
        return "verified: %s matches the pinned digest" % " and ".join(receipt.checked)
    if receipt.vouched == "source":
        return "verified: %s matches the digest from the source" % " and ".join(receipt.checked)
    digests = ", ".join("%s %s" % pair for pair in receipt.digests.items())
    text = "not verified: no digest was known"
    return "%s; the file has %s" % (text, digests) if digests else text


def describe_transfer(receipt: Receipt) -> Iterator[str]:
    """Yield lines about size, speed, verification, sources and the cost of each kind of error."""
    rate = (receipt.bytes - receipt.resumed_from) / receipt.seconds if receipt.seconds > 0 else 0.0
    text = "%s in %s" % (show_size(receipt.bytes), show_duration(receipt.seconds))
    if receipt.resumed_from:
        text += ", resumed at %s" % show_size(receipt.resumed_from)
    if rate >= 1:
        text += ", %s/s" % show_size(rate)
    if receipt.connections > 1:
        text += ", %d connections" % receipt.connections
    yield text
    yield describe_verification(receipt)
    if len(receipt.sources) > 1:
        for name, share in receipt.sources.items():
            yield "from %s: %s in %s" % (
                printable(name),
                show_size(share.bytes),
                show_duration(share.seconds),
            )
    for kind, cost in receipt.costs.by_kind.items():
        text = "error: %s, %d×" % (kind.value, cost.count)
        if cost.seconds >= 0.1:
            text += ", %s lost" % show_duration(cost.seconds)
        if cost.bytes:
            text += ", %s fetched twice" % show_size(cost.bytes)
        yield text
