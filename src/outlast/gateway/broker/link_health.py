"""How the link to the broker is, in words that `gateway status` prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class QueueState(str, Enum):
    """Whether the messages of a queue arrive here."""

    WAITING = "waiting"  # for the connection, or for the broker's reply
    CONSUMED = "consumed"
    MISSING = "missing"  # there is no such queue
    CANCELLED = "cancelled"  # the broker ended the delivery: the queue was deleted, or moved
    REFUSED = "refused"  # no permission, or the broker closed the channel


@dataclass(frozen=True)
class QueueHealth:
    """The state of a queue, the reason in a sentence, and since when (seconds since 1970) it is so."""

    name: str
    state: QueueState = QueueState.WAITING
    reason: str = ""
    since: float = 0.0


@dataclass(frozen=True)
class LinkHealth:
    """A snapshot of the link. Times are seconds since 1970."""

    #: Both connections are open since then; None: one of them is not.
    connected_since: float | None = None
    #: The first of the connections is down since then; None: none is.
    down_since: float | None = None
    #: Why it is down, or was last; empty if it never was.
    reason: str = ""
    #: How often connecting has failed since it was up.
    failures: int = 0
    #: The broker's reason for reading no publications, such as `low on memory`; empty: it reads them.
    blocked: str = ""
    blocked_since: float | None = None
    #: Why progress is not published; empty if it is, or if none is wanted.
    progress: str = ""
    version: str = ""
    #: The most bytes of a message: measured if the broker refused one, else the default of its version.
    message_limit: int | None = None
    queues: tuple[QueueHealth, ...] = ()
    #: When this changed last.
    time: float = 0.0

    @property
    def trouble(self) -> str:
        """Why it is not connected, or what the broker does not take now; empty if nothing is wrong."""
        if self.connected_since is None:
            return self.reason or "not connected yet"
        return self.blocked or self.progress

    @property
    def is_well(self) -> bool:
        """True if everything that was asked for works."""
        return (
            self.connected_since is not None
            and not self.blocked
            and not self.progress
            and all(queue.state is QueueState.CONSUMED for queue in self.queues)
        )


def default_message_limit(version: str) -> int | None:
    """Return the most bytes of a message that this version of RabbitMQ takes if nothing is configured."""
    numbers = parse_version(version)
    if numbers is None:
        return None
    if numbers >= (4, 0):
        return 16 * 2**20
    return 128 * 2**20 if numbers >= (3, 8) else 512 * 2**20


def parse_version(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, or None if it has no such form."""
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])
