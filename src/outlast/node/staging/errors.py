"""Errors of staging: their kinds, what each means for the attempt, and what they cost.

SourceError        one error of one source; the fetch retries, with this source or another
FetchFailed        nothing is left to try, or the patience is exhausted; `cause` is the deciding SourceError
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from outlast.node.protocol import Outcome


class ErrorKind(str, Enum):
    """The kind of an error, as counted in event logs and reports."""

    NO_ANSWER = "no answer"  # no connection, or no first byte
    STALL = "stall"  # no byte for the stall timeout
    CRAWL = "crawl"  # far slower than this source or the others recently were
    RESET = "reset"  # the connection broke
    TRUNCATED = "truncated"  # the body ended early, without a connection error
    SERVER_ERROR = "server error"  # 5xx, or a trailer that reports an incomplete body
    BUSY = "busy"  # 429, or 503 with Retry-After
    REFUSED = "refused"  # 401 or 403: the token is missing, expired or not valid for this path
    MISSING_FOR_NOW = "missing for now"  # a 404 from a server that may not know all files
    MISSING = "missing"
    CHANGED = "changed"  # the URL has a different file now
    WRONG_LENGTH = "wrong length"
    WRONG_DIGEST = "wrong digest"
    NO_RANGES = "no ranges"  # the source ignored the range and began at the start
    NONSENSE = "nonsense"  # a response that is not HTTP, or contradicts itself
    UNTRUSTED = "untrusted"  # the certificate could not be verified
    DISK_FULL = "disk full"
    BAD_ARCHIVE = "bad archive"
    # New kinds are added at the end: HTCondor's plugin reports them by their position.
    PROXY_REFUSED = "proxy refused"  # 407: the proxy's user or password is missing or wrong
    FORBIDDEN = "forbidden"  # a host, an address or a redirect that the item's rules do not allow
    TOO_LARGE = "too large"  # more bytes than the item may have


#: Retrying the same source cannot help: it is not used again.
FINAL = frozenset(
    {
        ErrorKind.MISSING,
        ErrorKind.WRONG_DIGEST,
        ErrorKind.WRONG_LENGTH,
        ErrorKind.UNTRUSTED,
        ErrorKind.BAD_ARCHIVE,
        ErrorKind.FORBIDDEN,
        ErrorKind.TOO_LARGE,
    }
)

#: The outcome of an attempt whose data could not be fetched because of an error of this kind.
OUTCOMES = {
    ErrorKind.NO_ANSWER: Outcome.NETWORK,
    ErrorKind.STALL: Outcome.STALLED,
    ErrorKind.CRAWL: Outcome.STALLED,
    ErrorKind.RESET: Outcome.NETWORK,
    ErrorKind.TRUNCATED: Outcome.NETWORK,
    ErrorKind.SERVER_ERROR: Outcome.NETWORK,
    ErrorKind.BUSY: Outcome.NETWORK,
    ErrorKind.REFUSED: Outcome.NETWORK,
    ErrorKind.PROXY_REFUSED: Outcome.NETWORK,
    ErrorKind.MISSING_FOR_NOW: Outcome.NOT_FOUND,
    ErrorKind.MISSING: Outcome.NOT_FOUND,
    ErrorKind.CHANGED: Outcome.CORRUPT_INPUT,
    ErrorKind.WRONG_LENGTH: Outcome.CORRUPT_INPUT,
    ErrorKind.WRONG_DIGEST: Outcome.CORRUPT_INPUT,
    ErrorKind.NO_RANGES: Outcome.NETWORK,
    ErrorKind.NONSENSE: Outcome.NETWORK,
    ErrorKind.UNTRUSTED: Outcome.NETWORK,
    ErrorKind.DISK_FULL: Outcome.OUT_OF_DISK,
    ErrorKind.BAD_ARCHIVE: Outcome.CORRUPT_INPUT,
    ErrorKind.FORBIDDEN: Outcome.NOT_FOUND,
    ErrorKind.TOO_LARGE: Outcome.CORRUPT_INPUT,
}


#: The host in a source's name.
_HOST = re.compile(r"[a-z]+://\[?([^/\]]+?)\]?(:[0-9]+)?/")


class SourceError(Exception):
    """An error of one source. `source` is its display name, without query, user and token."""

    def __init__(
        self, kind: ErrorKind, detail: str, source: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.source = source
        #: Seconds to wait before the next request, if the source specified them.
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.source}: {self.detail}" if self.source else self.detail

    @property
    def short(self) -> str:
        """The detail, preceded by the source's name unless the detail names the source's host."""
        host = _HOST.match(self.source)
        return self.detail if host and host.group(1) in self.detail else str(self)


class BeyondTheEnd(SourceError):
    """The source has no byte at the requested position, and does not report the size of its file."""


class FetchFailed(Exception):
    """A fetch was given up. Its text is for the user; it has the deciding error and all costs."""

    def __init__(self, detail: str, cause: SourceError, costs: ErrorCosts | None = None) -> None:
        super().__init__(detail)
        self.cause = cause
        self.costs = costs or ErrorCosts()

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[self.cause.kind]


@dataclass
class ErrorCost:
    """The cost of one kind of error: its count, bytes fetched again, and seconds without a new byte."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class ErrorCosts:
    """The costs of all errors of one item, by kind, for the event log, the ledger and the progress line."""

    by_kind: dict[ErrorKind, ErrorCost] = field(default_factory=dict)

    def record(self, kind: ErrorKind, lost_bytes: int = 0, seconds: float = 0.0) -> None:
        """Count one more error of this kind and add its costs."""
        cost = self.by_kind.setdefault(kind, ErrorCost())
        cost.count += 1
        cost.bytes += lost_bytes
        cost.seconds += seconds

    def to_dict(self) -> dict[str, dict[str, float]]:
        return {
            kind.value: {"count": cost.count, "bytes": cost.bytes, "seconds": round(cost.seconds, 3)}
            for kind, cost in self.by_kind.items()
        }
