"""What the `data` commands say alike: what was proved, what went wrong, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.node.archives.sink import Block
from outlast.node.staging.errors import ErrorKind
from outlast.node.staging.fetch.digests import Digests
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.fetch.receipt import Receipt
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens
from outlast.text import printable
from outlast.units import show_duration, show_size

if TYPE_CHECKING:
    from outlast.node.staging.item import DataItem
    from outlast.node.staging.sources.base import Source
    from outlast.schedulers.profile import Profile
import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.errors import BadInput
from outlast.node.staging.item import ALGORITHMS

if TYPE_CHECKING:
    from outlast.node.staging.sources.tokens import Tokens

#: What to do when data did not arrive for this.
ADVICE = {
    ErrorKind.NO_ANSWER: "see whether this machine reaches the host; another source helps: --mirror URL",
    ErrorKind.STALL: "try again later, or give another source: --mirror URL",
    ErrorKind.CRAWL: "try again later, or give another source: --mirror URL",
    ErrorKind.RESET: "try again later, or give another source: --mirror URL",
    ErrorKind.TRUNCATED: "try again later, or give another source: --mirror URL",
    ErrorKind.SERVER_ERROR: "try again later, or give another source: --mirror URL",
    ErrorKind.BUSY: "try again later, or give another source: --mirror URL",
    ErrorKind.REFUSED: "give a token that is good: --token-file FILE --token-host HOST",
    ErrorKind.MISSING_FOR_NOW: "see whether the URL is right; if it is, try again later",
    ErrorKind.MISSING: "see whether the URL is right",
    ErrorKind.CHANGED: "wait until nobody changes the file, and begin again",
    ErrorKind.WRONG_LENGTH: "see whether the pinned size is that of this file",
    ErrorKind.WRONG_DIGEST: "see whether the digest is that of this file; if so, the source has another file",
    ErrorKind.NO_RANGES: "give a source that can go on where it stopped: --mirror URL",
    ErrorKind.NONSENSE: "see what answers there: curl -I URL",
    ErrorKind.UNTRUSTED: "if you trust its authority, name its certificate: SSL_CERT_FILE=FILE",
    ErrorKind.DISK_FULL: "make room, or choose another place",
    ErrorKind.BAD_ARCHIVE: "see whether it is an archive; --unpack no takes it as it is",
}


def proved(receipt: Receipt) -> str:
    """What was compared, and with whose word."""
    if receipt.vouched == "pinned":
        return "%s is the pinned one" % " and ".join(receipt.checked)
    if receipt.vouched == "source":
        return "%s is the one that the source tells" % " and ".join(receipt.checked)
    digests = ", ".join("%s %s" % pair for pair in receipt.digests.items())
    return "nobody vouched for it; its digest is %s" % digests if digests else "nobody vouched for it"


def account(receipt: Receipt) -> Iterator[str]:
    """What a transfer brought, from whom, and what its troubles cost; a line each."""
    rate = (receipt.bytes - receipt.resumed_from) / receipt.seconds if receipt.seconds > 0 else 0.0
    text = "%s in %s" % (show_size(receipt.bytes), show_duration(receipt.seconds))
    if receipt.resumed_from:
        text += ", %s of it from before" % show_size(receipt.resumed_from)
    if rate >= 1:
        text += ", %s/s" % show_size(rate)
    if receipt.connections > 1:
        text += ", %d connections" % receipt.connections
    yield text
    yield "checked: %s" % proved(receipt)
    if len(receipt.sources) > 1:
        for name, share in receipt.sources.items():
            yield "from %s: %s in %s" % (
                printable(name),
                show_size(share.bytes),
                show_duration(share.seconds),
            )
    for kind, cost in receipt.costs.by_kind.items():
        text = "trouble: %s, %d×" % (kind.value, cost.count)
        if cost.seconds >= 0.1:
            text += ", %s lost" % show_duration(cost.seconds)
        if cost.bytes:
            text += ", %s fetched twice" % show_size(cost.bytes)
        yield text


# A sink that keeps nothing but digests: what a file is, without room for it on any disk.
class Hashing:
    """See `outlast.node.archives.sink.Sink`. It begins at the first byte each time."""

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
        """There is nothing to show."""

    def close(self) -> None:
        """There is nothing open."""

    def results(self) -> Mapping[str, str]:
        return self._digests.results()


# With what data is asked for from this machine: limits and tokens, as the cluster's profile has them.
@dataclass(frozen=True)
class Means:
    http: HttpSettings
    tokens: Tokens
    fetching: FetchSettings

    def sources(self, wanted: DataItem) -> list[Source]:
        """Raises ValueError."""
        return sources_for(wanted, self.http, self.tokens)


def means_of(site: Profile) -> Means:
    file = os.path.expanduser(site.token_file)  # noqa: PTH111
    return Means(
        HttpSettings(site.stall, site.stall, site.stall),
        Tokens(site.token_hosts, file, site.token_command),
        FetchSettings(patience=site.patience, connections=site.connections),
    )


# Options that several `data` commands have.
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
    from outlast.node.staging.fetch.digests import normalise_digest

    found = {}
    for name in ALGORITHMS:
        if options.get(name):
            try:
                found[name] = normalise_digest(name, options[name])
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
        return units.parse_duration(text)
    except ValueError as error:
        raise BadInput("--patience: %s" % error) from error
