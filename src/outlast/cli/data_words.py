"""What the `data` commands say alike: what was proved, what went wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.domain.describe import printable
from outlast.node.staging.errors import Kind
from outlast.node.staging.fetch.receipt import Receipt
from outlast.units import show_duration, show_size

#: What to do when data did not arrive for this.
ADVICE = {
    Kind.NO_ANSWER: "see whether this machine reaches the host; another source helps: --mirror URL",
    Kind.STALL: "try again later, or give another source: --mirror URL",
    Kind.CRAWL: "try again later, or give another source: --mirror URL",
    Kind.RESET: "try again later, or give another source: --mirror URL",
    Kind.TRUNCATED: "try again later, or give another source: --mirror URL",
    Kind.SERVER_ERROR: "try again later, or give another source: --mirror URL",
    Kind.BUSY: "try again later, or give another source: --mirror URL",
    Kind.REFUSED: "give a token that is good: --token-file FILE --token-host HOST",
    Kind.MISSING_FOR_NOW: "see whether the URL is right; if it is, try again later",
    Kind.MISSING: "see whether the URL is right",
    Kind.CHANGED: "wait until nobody changes the file, and begin again",
    Kind.WRONG_LENGTH: "see whether the pinned size is that of this file",
    Kind.WRONG_DIGEST: "see whether the digest is that of this file; if so, the source has another file",
    Kind.NO_RANGES: "give a source that can go on where it stopped: --mirror URL",
    Kind.NONSENSE: "see what answers there: curl -I URL",
    Kind.UNTRUSTED: "if you trust its authority, name its certificate: SSL_CERT_FILE=FILE",
    Kind.DISK_FULL: "make room, or choose another place",
    Kind.BAD_ARCHIVE: "see whether it is an archive; --unpack no takes it as it is",
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
