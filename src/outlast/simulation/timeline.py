"""Virtual time: actions happen in the order of their moments, and nothing ever waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """The true time, which nobody in the simulation can read without a skew of some kind."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do `action` at `when`, or now if that is over; actions of one moment keep their order."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, action))

    def advance(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = max(self.now, until)

    def drain(self) -> None:
        """Let everything happen that is due at any time."""
        while self._due:
            self.advance(self._due[0][0])
