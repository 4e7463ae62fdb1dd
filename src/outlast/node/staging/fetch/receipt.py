"""What a fetch tells: while it runs, and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from outlast.node.staging.errors import ErrorCosts, ErrorKind


@dataclass(frozen=True)
class FetchProgress:
    done: int
    #: None: nobody has said.
    total: int | None
    #: Bytes per second, over the last seconds.
    rate: float
    #: Who gives at the moment; empty in a pause.
    source: str
    connections: int
    #: The last trouble, until bytes come again.
    trouble: str = ""
    #: Seconds until the next try; None: no pause.
    next_try_in: float | None = None
    #: Seconds until the fetch gives up unless bytes come; None: bytes come.
    gives_up_in: float | None = None


@dataclass
class SourceShare:
    """What one source gave."""

    bytes: int = 0
    #: For which it was the one that was asked.
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Receipt:
    bytes: int
    #: Hexadecimal, by algorithm: all that were computed.
    digests: Mapping[str, str]
    #: Which of them were compared, and with whose word: "pinned", "source", or "nobody".
    checked: tuple[str, ...]
    vouched: str
    #: By name, in the order in which they were wanted; those that gave nothing are left out.
    sources: Mapping[str, SourceShare]
    costs: ErrorCosts
    seconds: float
    #: How many bytes an earlier process had left.
    resumed_from: int = 0
    #: The most at once.
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


# Who gave what, and what every trouble cost: bytes that came twice, and seconds without a new byte.
class CostLog:
    """Every second belongs to whoever gave the next bytes, or to the trouble that kept them away."""

    def __init__(self, names: Sequence[str], now: float) -> None:
        self.costs = ErrorCosts()
        self.shares: dict[int, SourceShare] = {}
        self._names = names
        self._mark = now
        #: The last trouble, if no byte has come since.
        self._unsettled: ErrorKind | None = None

    def gave(self, index: int, count: int, first: float, last: float) -> None:
        """So many bytes, the first and the last of them at these times."""
        share = self.shares.setdefault(index, SourceShare())
        share.bytes += count
        if self._unsettled is not None:
            self.settle(first)
        # What another connection brought may be told of later than it came.
        share.seconds += max(0.0, last - self._mark)
        self._mark = max(self._mark, last)

    def trouble(self, kind: ErrorKind, now: float, slow: float = 0.0) -> None:
        """`slow`: seconds that were lost while bytes came, too few of them."""
        self.settle(now, kind)
        self.costs.by_kind[kind].seconds += slow
        self._unsettled = kind

    def twice(self, kind: ErrorKind, count: int) -> None:
        """So many bytes came, or have to come, once more for a trouble that was told."""
        self.costs.by_kind[kind].bytes += count

    def settle(self, now: float, next_kind: ErrorKind | None = None) -> None:
        """The time since the last byte or trouble is booked, to the trouble before if there was one."""
        seconds, self._mark = max(0.0, now - self._mark), max(now, self._mark)
        if self._unsettled is not None:
            self.costs.by_kind[self._unsettled].seconds += seconds
            self._unsettled, seconds = None, 0.0
        if next_kind is not None:
            self.costs.book(next_kind, seconds=seconds)

    def by_name(self) -> dict[str, SourceShare]:
        return {self._names[index]: share for index, share in sorted(self.shares.items())}
