"""Counting of identical failures in a row: the same failure twice stops a run.

The controller counts across attempts. A chain is one attempt, and its jobs count for themselves, because the
controller may not be running.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.node.protocol import Outcome

#: The number of identical failures that stops a run; a single failure may be an accident.
MAX_REPEATS = 2
#: Failures that the training causes; failures of the cluster are never counted.
TRAINING_FAILURES = (Outcome.CRASHED, Outcome.WRONG_OUTPUT, Outcome.OUT_OF_MEMORY)
#: Failures of the data. With a signature they are permanent: the sources respond with no or wrong content.
DATA_FAILURES = (Outcome.NOT_FOUND, Outcome.CORRUPT_INPUT)
#: A training that crashes within this many seconds, and saved nothing, may have crashed on its checkpoint.
SOON = 900.0


def blames_checkpoint(outcome: Outcome, seconds: float, *, progressed: bool) -> bool:
    """Return True if a training that computed for `seconds` may have failed on its checkpoint."""
    return outcome is Outcome.CRASHED and not progressed and seconds <= SOON


@dataclass(frozen=True)
class FailureStreak:
    """The last failure of the training or its data, and how often it occurred in a row."""

    signature: str | None = None
    times: int = 0

    @property
    def is_hopeless(self) -> bool:
        """True if the run must stop."""
        return self.times >= MAX_REPEATS

    def stops_after(self, outcome: Outcome | None) -> bool:
        """Return True if the run must stop after a start or attempt with this outcome.

        One that did not fail in this way, such as an evicted one, may have begun from an older snapshot.
        """
        return self.is_hopeless and outcome in (*TRAINING_FAILURES, *DATA_FAILURES)

    def after(
        self,
        outcome: Outcome | None,
        signature: str | None,
        *,
        progressed: bool,
        signal: int | None,
        times: int = 1,
    ) -> FailureStreak:
        """Return the streak after one more start or attempt, which had its failure `times` times."""
        killed_from_outside = progressed and signal is not None  # probably, since it made progress
        if signature and outcome in (*TRAINING_FAILURES, *DATA_FAILURES) and not killed_from_outside:
            return FailureStreak(signature, self.times + times if signature == self.signature else times)
        return FailureStreak() if progressed else self
