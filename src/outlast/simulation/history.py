"""The result of a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.domain.model import Attempt, JournalEntry, Run
from outlast.simulation.scenario import Scenario
from outlast.simulation.simulated_exchange import SimulatedExchange
from outlast.simulation.simulated_job import SimulatedJob
from outlast.simulation.simulated_node import RunTruth


@dataclass(frozen=True)
class Violation:
    """A broken promise. `promise` is its number in docs/promises.md, or "fold"."""

    promise: str
    run: str
    text: str

    def __str__(self) -> str:
        return "promise %s, %s: %s" % (self.promise, self.run or "all runs", self.text)


@dataclass
class History:
    """The journal of a schedule that is over, and what really happened."""

    scenario: Scenario
    entries: list[JournalEntry]
    runs: dict[str, Run]
    attempts: dict[str, Attempt]
    truths: dict[str, RunTruth]
    jobs: dict[str, SimulatedJob]
    exchange: SimulatedExchange
    violations: list[Violation]
    passes: int
    deaths: int

    def attempts_of(self, run: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.run == run]
