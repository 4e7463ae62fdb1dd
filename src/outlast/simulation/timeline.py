"""Virtual time: scheduled actions run in order, without waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """The true time. The simulated programs see it with an error."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule `action` for `when`, or now if that is past; actions at one time keep their order."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, action))

    def advance(self, until: float) -> None:
        """Run the actions that are due by `until`, and set the time to it."""
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = max(self.now, until)

    def drain(self) -> None:
        """Run all scheduled actions."""
        while self._due:
            self.advance(self._due[0][0])
