"""The checkpoint directory of a simulated run."""

from __future__ import annotations

#: One start of an attempt's job: the attempt's token, and which start it is, counted from 1.
LegKey = tuple[str, int]


class SimulatedCheckpoints:
    """Keeps the rules that `outlast.training` keeps."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._generation = 0
        #: Step, the leg that saved it, and whether it can be read; oldest first.
        self._saved: list[tuple[int, LegKey, bool]] = []

    def load(self) -> tuple[int | None, LegKey | None, int]:
        """The newest readable step, who saved it, and a generation that ends all older ones."""
        self._generation += 1
        while self._saved and not self._saved[-1][2]:
            self._saved.pop()
        step, leg = self._saved[-1][:2] if self._saved else (None, None)
        return step, leg, self._generation

    def save(self, step: int, leg: LegKey, generation: int) -> bool:
        """False: a newer leg has loaded since, so this one may commit nothing more."""
        if generation != self._generation:
            return False
        self._saved = [*self._saved, (step, leg, True)][-self._keep :]
        return True

    def tear(self) -> None:
        """The newest becomes unreadable; the one before it stays, as saving never deletes that."""
        if len(self._saved) >= 2 and self._saved[-2][2]:
            step, leg, _ = self._saved[-1]
            self._saved[-1] = (step, leg, False)
