"""Pauses between attempts without end: they grow, they are not the same for all, and they have a limit."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class PauseLimits:
    """The first and the longest pause, in seconds."""

    first: float = 0.5
    most: float = 30.0


class Pauses:
    """The pauses of one thing that is tried again for ever."""

    def __init__(self, limits: PauseLimits) -> None:
        self._limits = limits
        #: Attempts that have failed since the last success.
        self.failures = 0

    def next(self) -> float:
        """Count a failure and return the pause before the next attempt."""
        # The exponent is bounded: after a week without a broker it would overflow.
        longest = min(self._limits.most, self._limits.first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        # A hundred gateways do not come back in the same second.
        return longest * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin with the first pause again."""
        self.failures = 0
