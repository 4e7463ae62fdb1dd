"""The checkpoint directory of a simulated run."""

from __future__ import annotations

#: A leg, one start of an attempt's job: the attempt's token and the number of the start, from 1.
LegKey = tuple[str, int]


class SimulatedCheckpoints:
    """Checkpoints with the same rules as in `outlast.training`."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._generation = 0
        #: Step, the leg that saved it, and whether it can be read; oldest first.
        self._saved: list[tuple[int, LegKey, bool]] = []

    def load(self) -> tuple[int | None, LegKey | None, int]:
        """Return the newest readable step, the leg that saved it, and a new generation.

        The new generation ends all older ones: they can no longer save.
        """
        self._generation += 1
        while self._saved and not self._saved[-1][2]:
            self._saved.pop()
        step, leg = self._saved[-1][:2] if self._saved else (None, None)
        return step, leg, self._generation

    def save(self, step: int, leg: LegKey, generation: int) -> bool:
        """Save a step; return False if a newer leg has loaded since, so that this one may not save."""
        if generation != self._generation:
            return False
        self._saved = [*self._saved, (step, leg, True)][-self._keep :]
        return True

    def tear(self) -> None:
        """Make the newest checkpoint unreadable, if the one before it is readable."""
        if len(self._saved) >= 2 and self._saved[-2][2]:
            step, leg, _ = self._saved[-1]
            self._saved[-1] = (step, leg, False)
