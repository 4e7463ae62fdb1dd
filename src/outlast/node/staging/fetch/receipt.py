"""What a fetch reports: its progress while it runs, a receipt at its end, and what errors have cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from outlast.node.staging.errors import ErrorCosts, ErrorKind


@dataclass(frozen=True)
class FetchProgress:
    """The state of a fetch at one moment."""

    #: Bytes that the sink has, and the size of the file; None if unknown.
    done: int
    total: int | None
    #: Bytes per second, over the last second.
    rate: float
    #: Name of the source in use; empty during a pause.
    source: str
    connections: int
    #: The last error, until bytes arrive again; empty: none.
    error: str = ""
    #: Seconds until the next try; None outside of pauses.
    next_try_in: float | None = None
    #: Seconds until the fetch gives up if no bytes arrive; None while they arrive.
    gives_up_in: float | None = None


@dataclass
class SourceShare:
    """The bytes that one source delivered, and the seconds spent on it."""

    bytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Receipt:
    """A completed fetch."""

    bytes: int
    #: All computed digests, in hexadecimal, by algorithm.
    digests: Mapping[str, str]
    #: The algorithms that were compared, and who vouches for the expected value: "pinned", "source" or
    #: "nobody".
    checked: tuple[str, ...]
    vouched: str
    #: By name, in the order of preference; without those that delivered nothing.
    sources: Mapping[str, SourceShare]
    costs: ErrorCosts
    seconds: float
    #: Bytes that an earlier process had left.
    resumed_from: int = 0
    #: Most connections at once.
    connections: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "digests": dict(self.digests),
            "checked": list(self.checked),
            "vouched": self.vouched,
            "sources": {
                name: {"bytes": share.bytes, "seconds": round(share.seconds, 3)}
                for name, share in self.sources.items()
            },
            "troubles": self.costs.to_dict(),
            "seconds": round(self.seconds, 3),
            "resumed_from": self.resumed_from,
            "connections": self.connections,
        }


class CostLog:
    """Charges each second to the source that delivered next, or to the error that delayed it.

    Also counts the bytes that each kind of error made necessary again.
    """

    def __init__(self, names: Sequence[str], now: float) -> None:
        self.costs = ErrorCosts()
        self._shares: dict[int, SourceShare] = {}
        self._names = names
        self._charged_until = now
        #: The last error, if no byte has arrived since.
        self._open_error: ErrorKind | None = None

    def add_bytes(self, index: int, count: int, first_at: float, last_at: float) -> None:
        """Credit a source with bytes, the first and last of which arrived at these times."""
        share = self._shares.setdefault(index, SourceShare())
        share.bytes += count
        if self._open_error is not None:
            self.charge_elapsed(first_at)
        # With several connections, bytes can be reported later than they arrived.
        share.seconds += max(0.0, last_at - self._charged_until)
        self._charged_until = max(self._charged_until, last_at)

    def add_error(self, kind: ErrorKind, now: float, slow_seconds: float = 0.0) -> None:
        """Count an error and charge it with the time since the last byte.

        `slow_seconds`: time lost before, while bytes arrived too slowly.
        """
        self.charge_elapsed(now, kind)
        self.costs.by_kind[kind].seconds += slow_seconds
        self._open_error = kind

    def add_refetched(self, kind: ErrorKind, count: int) -> None:
        """Charge an error that was added before with bytes that are received twice because of it."""
        self.costs.by_kind[kind].bytes += count

    def charge_elapsed(self, now: float, next_kind: ErrorKind | None = None) -> None:
        """Charge the time since the last byte or error to that error, else to `next_kind`.

        `next_kind` is an error that has just occurred; it is counted.
        """
        seconds = max(0.0, now - self._charged_until)
        self._charged_until = max(now, self._charged_until)
        if self._open_error is not None:
            self.costs.by_kind[self._open_error].seconds += seconds
            self._open_error, seconds = None, 0.0
        if next_kind is not None:
            self.costs.record(next_kind, seconds=seconds)

    def shares_by_name(self) -> dict[str, SourceShare]:
        return {self._names[index]: share for index, share in sorted(self._shares.items())}
