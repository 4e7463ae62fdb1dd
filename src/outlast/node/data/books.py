"""Who gave what, and what every trouble cost: bytes that came twice, and seconds without a new byte."""

from __future__ import annotations

from typing import Sequence

from outlast.node.data.receipt import Share
from outlast.node.data.troubles import Costs, Kind


class Books:
    """Every second belongs to whoever gave the next bytes, or to the trouble that kept them away."""

    def __init__(self, names: Sequence[str], now: float) -> None:
        self.costs = Costs()
        self.shares: dict[int, Share] = {}
        self._names = names
        self._mark = now
        #: The last trouble, if no byte has come since.
        self._unsettled: Kind | None = None

    def gave(self, index: int, count: int, first: float, last: float) -> None:
        """So many bytes, the first and the last of them at these times."""
        share = self.shares.setdefault(index, Share())
        share.bytes += count
        if self._unsettled is not None:
            self.settle(first)
        # What another connection brought may be told of later than it came.
        share.seconds += max(0.0, last - self._mark)
        self._mark = max(self._mark, last)

    def trouble(self, kind: Kind, now: float, slow: float = 0.0) -> None:
        """`slow`: seconds that were lost while bytes came, too few of them."""
        self.settle(now, kind)
        self.costs.by_kind[kind].seconds += slow
        self._unsettled = kind

    def twice(self, kind: Kind, count: int) -> None:
        """So many bytes came, or have to come, once more for a trouble that was told."""
        self.costs.by_kind[kind].bytes += count

    def settle(self, now: float, next_kind: Kind | None = None) -> None:
        """The time since the last byte or trouble is booked, to the trouble before if there was one."""
        seconds, self._mark = max(0.0, now - self._mark), max(now, self._mark)
        if self._unsettled is not None:
            self.costs.by_kind[self._unsettled].seconds += seconds
            self._unsettled, seconds = None, 0.0
        if next_kind is not None:
            self.costs.book(next_kind, seconds=seconds)

    def by_name(self) -> dict[str, Share]:
        return {self._names[index]: share for index, share in sorted(self.shares.items())}
