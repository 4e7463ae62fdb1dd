"""Limits on new attempts, hosts to avoid, and scouts during an outage of a data source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.domain.admission import SCOUT_TIMEOUT, admit, choose_avoided, hold_back
from outlast.domain.decision import Decision, DecisionKind
from outlast.domain.model import Attempt, AttemptState, Ending, Outcome, Run, RunState

NOW = 10_000.0


FREE = (1, None)


def test_as_many_starts_are_admitted_as_fit_the_limits() -> None:
    starts = [Decision(DecisionKind.START, name) for name in "abcd"]
    assert len(admit(starts, FREE, FREE, FREE)) == 4
    assert [start.run for start in admit(starts, (1, 3), FREE, FREE)] == ["a", "b"]
    assert [start.run for start in admit(starts, (1, 9), (1, 2), FREE)] == ["a"]
    assert not admit(starts, (5, 3), FREE, FREE)
    assert [start.run for start in admit(starts, FREE, FREE, (3, 5))] == ["a", "b"]
    assert not admit(starts, (1, 9), FREE, (7, 5))


def test_a_chain_counts_as_one_run_and_as_all_of_its_jobs() -> None:
    chains = [Decision(DecisionKind.START, name) for name in "abcd"]
    assert len(admit(chains, (1, 4), FREE, FREE, jobs_per_start=5)) == 3
    assert [start.run for start in admit(chains, FREE, (2, 12), FREE, jobs_per_start=5)] == ["a", "b"]
    assert [start.run for start in admit(chains, FREE, FREE, (6, 15), jobs_per_start=5)] == ["a"]
    assert not admit(chains, FREE, (0, 4), FREE, jobs_per_start=5)


def test_not_all_hosts_are_avoided() -> None:
    assert choose_avoided(("a", "b"), ()) == ("a", "b")
    assert choose_avoided(("a",), ("a",)) == ()
    assert choose_avoided(("a", "b"), ("a", "b", "c")) == ("a", "b")
    assert choose_avoided(("a", "b", "c"), ("a", "b", "c")) == ("b", "c")
    assert choose_avoided(("gone", "a"), ("a", "b")) == ("a",)


def ended(
    at: float, outcome: Outcome = Outcome.NOT_FOUND, computed: bool = False, transient: bool = True
) -> Ending:
    return Ending(1, "old", outcome, "no data", at=at, computed=computed, transient=transient)


def a_run(number: int, last: Ending | None, current: str | None = None, spec: int = 1) -> Run:
    return Run(f"r{number}", number, spec, {}, RunState.ACTIVE, 0.0, 0.0, last=last, current=current)


@dataclass
class World:
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    computed: float = -math.inf
    with_data: frozenset[str] = frozenset()

    def current(self, run: Run) -> Attempt | None:
        return self.attempts.get(run.current) if run.current else None

    def last_computed(self, spec: int) -> float:
        return self.computed

    def started(self, runs: list[Run]) -> list[str]:
        starts = [Decision(DecisionKind.START, run.name) for run in runs if run.current is None]
        kept = hold_back(starts, runs, self, lambda attempt: attempt.token in self.with_data, NOW)
        return [start.run for start in kept]


def under_way(run: str, intended: float, started: float | None = None) -> dict[str, Attempt]:
    state = AttemptState.QUEUED if started is None else AttemptState.RUNNING
    return {"now": Attempt(run, 2, "now", state, intended=intended, started=started)}


def test_the_run_that_was_turned_back_longest_ago_becomes_the_scout() -> None:
    runs = [a_run(1, ended(9000.0)), a_run(2, ended(8000.0)), a_run(3, ended(8500.0))]
    assert World().started(runs) == ["r2"]


def test_runs_that_were_never_started_wait_for_the_scout_too() -> None:
    runs = [a_run(1, ended(9000.0)), a_run(2, None, current="now"), a_run(3, None)]
    assert World(under_way("r2", 9500.0)).started(runs) == []


def test_all_runs_start_as_soon_as_the_scout_has_its_data() -> None:
    runs = [a_run(1, ended(9000.0), current="now"), a_run(2, ended(9000.0)), a_run(3, None)]
    attempts = under_way("r1", 9500.0, started=9600.0)
    assert World(attempts).started(runs) == []
    assert World(attempts, with_data=frozenset({"now"})).started(runs) == ["r2", "r3"]


def test_an_attempt_that_began_before_the_outage_does_not_end_it() -> None:
    runs = [a_run(1, None, current="now"), a_run(2, ended(9000.0)), a_run(3, ended(9000.0))]
    attempts = under_way("r1", 100.0, started=200.0)
    assert World(attempts, with_data=frozenset({"now"})).started(runs) == ["r2"]


def test_an_attempt_that_computed_since_ends_the_outage_for_all() -> None:
    runs = [a_run(1, ended(9000.0)), a_run(2, ended(9100.0))]
    assert World(computed=9200.0).started(runs) == ["r1", "r2"]
    assert World(computed=9050.0).started(runs) == ["r1"]


def test_a_scout_that_is_queued_for_long_is_joined_by_another() -> None:
    runs = [a_run(1, ended(1000.0), current="now"), a_run(2, ended(1000.0)), a_run(3, ended(1000.0))]
    assert World(under_way("r1", NOW - SCOUT_TIMEOUT - 1)).started(runs) == ["r2"]


def test_runs_that_need_other_data_are_not_held_back() -> None:
    runs = [a_run(1, ended(9000.0)), a_run(2, ended(9000.0)), a_run(3, None, spec=2)]
    assert World().started(runs) == ["r1", "r3"]


def test_neither_a_failed_training_nor_permanently_missing_data_holds_other_runs_back() -> None:
    for last in (
        ended(9000.0, Outcome.CRASHED, computed=True),
        ended(9000.0, Outcome.NETWORK, computed=True),
        ended(9000.0, Outcome.NOT_FOUND, transient=False),
    ):
        assert World().started([a_run(1, last), a_run(2, last)]) == ["r1", "r2"]
