"""The same failure twice stops a run: the one way of counting, for attempts and for the legs of a chain.

The controller counts across attempts. A chain is one attempt, and its jobs count by themselves: nobody else
may be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.node.protocol import Outcome

#: So often the same failure is met before it is believed: some are flukes.
MAX_REPEATS = 2
#: The training's own doing; what happens twice on the cluster's side is its trouble twice.
TRAINING_FAILURES = (Outcome.CRASHED, Outcome.WRONG_OUTPUT, Outcome.OUT_OF_MEMORY)
#: With a signature they are for good: the sources answer, and have no such file, or another one.
DATA_FAILURES = (Outcome.NOT_FOUND, Outcome.CORRUPT_INPUT)


@dataclass(frozen=True)
class FailureStreak:
    """The last failure of the training's or of its data, and how often it came without another between."""

    signature: str | None = None
    times: int = 0

    @property
    def hopeless(self) -> bool:
        return self.times >= MAX_REPEATS

    def after(
        self,
        outcome: Outcome | None,
        signature: str | None,
        *,
        progressed: bool,
        signal: int | None,
        times: int = 1,
    ) -> FailureStreak:
        """One more start (or attempt) ended so; an attempt may have met its failure several times."""
        from_outside = progressed and signal is not None  # killed, it seems, and it does get on
        if signature and outcome in (*TRAINING_FAILURES, *DATA_FAILURES) and not from_outside:
            return FailureStreak(signature, self.times + times if signature == self.signature else times)
        return FailureStreak() if progressed else self
