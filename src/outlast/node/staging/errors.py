"""What goes wrong between a source and a disk: each kind has a name, is counted, and has its answer.

Trouble            one thing that went wrong with one source; the fetch goes on, here or elsewhere
GivenUp            nothing is left to try, or the patience is used up; carries the last Trouble
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from outlast.node.protocol import Outcome


class ErrorKind(str, Enum):
    NO_ANSWER = "no answer"  # no connection, or no first byte
    STALL = "stall"  # no byte for a while
    CRAWL = "crawl"  # far slower than this source or its siblings just were
    RESET = "reset"  # the connection broke
    TRUNCATED = "truncated"  # it ended early, in good order
    SERVER_ERROR = "server error"  # 5xx, or a trailer that says the body is not whole
    BUSY = "busy"  # 429, or 503 with Retry-After
    REFUSED = "refused"  # 401 or 403: the token is missing, expired or not for this
    MISSING_FOR_NOW = "missing for now"  # a 404 that nobody who knows has said
    MISSING = "missing"
    CHANGED = "changed"  # another file behind the same URL
    WRONG_LENGTH = "wrong length"
    WRONG_DIGEST = "wrong digest"
    NO_RANGES = "no ranges"  # it was asked to go on, and began again
    NONSENSE = "nonsense"  # an answer that is not HTTP, or contradicts itself
    UNTRUSTED = "untrusted"  # its certificate proves nothing
    DISK_FULL = "disk full"
    BAD_ARCHIVE = "bad archive"


#: Asking the same source again cannot help: it is put aside for good.
FINAL = frozenset(
    {
        ErrorKind.MISSING,
        ErrorKind.WRONG_DIGEST,
        ErrorKind.WRONG_LENGTH,
        ErrorKind.UNTRUSTED,
        ErrorKind.BAD_ARCHIVE,
    }
)

#: How an attempt ends whose data did not arrive for this.
OUTCOMES = {
    ErrorKind.NO_ANSWER: Outcome.NETWORK,
    ErrorKind.STALL: Outcome.STALLED,
    ErrorKind.CRAWL: Outcome.STALLED,
    ErrorKind.RESET: Outcome.NETWORK,
    ErrorKind.TRUNCATED: Outcome.NETWORK,
    ErrorKind.SERVER_ERROR: Outcome.NETWORK,
    ErrorKind.BUSY: Outcome.NETWORK,
    ErrorKind.REFUSED: Outcome.NETWORK,
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
}


#: The host in a source's name.
_HOST = re.compile(r"[a-z]+://\[?([^/\]]+?)\]?(:[0-9]+)?/")


class SourceError(Exception):
    """`source` is its name for people: no query, no user, no token."""

    def __init__(
        self, kind: ErrorKind, detail: str, source: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.source = source
        #: Seconds that the source asked for.
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.source}: {self.detail}" if self.source else self.detail

    @property
    def short(self) -> str:
        """Return the detail alone if it names the source's host, else with the source's name."""
        host = _HOST.match(self.source)
        return self.detail if host and host.group(1) in self.detail else str(self)


class FetchFailed(Exception):
    """A sentence for the user, the trouble that decided it, and what all of them have cost."""

    def __init__(self, detail: str, trouble: SourceError, costs: ErrorCosts | None = None) -> None:
        super().__init__(detail)
        self.trouble = trouble
        self.costs = costs or ErrorCosts()

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[self.trouble.kind]


@dataclass
class ErrorCost:
    """What one kind of trouble has cost: how often, bytes fetched again, seconds without a new byte."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class ErrorCosts:
    """All of an item's troubles, by kind; in the event log, the ledger and the progress line."""

    by_kind: dict[ErrorKind, ErrorCost] = field(default_factory=dict)

    def book(self, kind: ErrorKind, lost_bytes: int = 0, seconds: float = 0.0) -> None:
        cost = self.by_kind.setdefault(kind, ErrorCost())
        cost.count += 1
        cost.bytes += lost_bytes
        cost.seconds += seconds

    def to_dict(self) -> dict[str, dict[str, float]]:
        return {
            kind.value: {"count": cost.count, "bytes": cost.bytes, "seconds": round(cost.seconds, 3)}
            for kind, cost in self.by_kind.items()
        }
