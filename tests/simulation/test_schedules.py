"""Promises 1, 2, 5 and 6 over thousands of schedules, which are reproducible from their seeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from outlast.domain.model import EntryKind
from outlast.simulation import carry_out, draw_scenario, simulate
from outlast.simulation.scenario import Weather
from outlast.simulation.seed_runs import SeedFailure, run_seeds

SCHEDULES = 10_000
#: Seeds per test: small enough to spread over all processes of a test run.
SLICE = 1_000
#: The first seed; OUTLAST_SIM_SEED moves the whole range.
BASE = int(os.environ.get("OUTLAST_SIM_SEED", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SCHEDULES, SLICE))
def test_ten_thousand_schedules_keep_the_promises(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    result = run_seeds(BASE + first, BASE + first + SLICE)
    record_property("seeds", str(result))
    assert not result.failures, "\n".join(str(failure) for failure in result.failures[:20])


def test_a_few_schedules_keep_the_promises() -> None:
    result = run_seeds(BASE, BASE + 100)
    assert not result.failures, "\n".join(str(failure) for failure in result.failures)


def test_a_seed_always_gives_the_same_trace() -> None:
    for seed in range(BASE, BASE + 10):
        first: list[str] = []
        second: list[str] = []
        carry_out(draw_scenario(seed), first)
        carry_out(draw_scenario(seed), second)
        assert first == second


def test_tracing_does_not_change_a_schedule() -> None:
    for seed in range(BASE, BASE + 10):
        traced = carry_out(draw_scenario(seed), [])
        untraced = carry_out(draw_scenario(seed))
        assert traced.entries == untraced.entries


def test_a_failing_seed_is_reported_with_the_line_that_reruns_it() -> None:
    text = str(SeedFailure(1234, "promise 2, run0: two results were accepted"))
    assert "promise 2" in text
    line = text.splitlines()[-1]
    assert line.endswith("python -m outlast.simulation --seed 1234 -v")


def test_one_command_reruns_a_seed_and_prints_its_trace() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outlast.simulation", "--seed", "7", "-v"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if re.match(r" +\d+\.\d  ", line)]
    entries = carry_out(draw_scenario(7)).entries
    assert sum("  run" in line for line in lines) >= len(entries)
    assert "run0: " in done.stdout


def test_the_command_line_runs_a_range_and_counts_it() -> None:
    command = [sys.executable, "-m", "outlast.simulation", "--seeds", "3:9", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "seeds 3:9: 6 schedules" in done.stdout
    wrong = subprocess.run([*command[:4], "9:3"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2 and "FIRST:END" in wrong.stderr


def test_every_fault_occurs_and_some_scenarios_have_none() -> None:
    scenarios = [draw_scenario(seed) for seed in range(400)]
    for fault in Weather.__dataclass_fields__:
        assert any(getattr(scenario.weather, fault) for scenario in scenarios), fault
    assert any(scenario.bad_hosts for scenario in scenarios)
    assert any(scenario.most_jobs for scenario in scenarios)
    assert any(scenario.submit_rate for scenario in scenarios)
    degrees = (
        "evicted_with_notice",
        "requeued",
        "blind",
        "held_again",
        "releasable",
        "vanished_lives",
        "vanished_returns",
        "stale_seconds",
        "log_late_seconds",
    )
    faults = [fault for fault in Weather.__dataclass_fields__ if fault not in degrees]
    assert any(not any(getattr(s.weather, fault) for fault in faults) for s in scenarios)


def test_schedules_reach_every_outcome_and_every_final_state() -> None:
    outcomes = set()
    ends = set()
    deaths = twins = legs = held = released = 0
    kinds = set()
    for seed in range(300):
        history = carry_out(draw_scenario(seed))
        outcomes |= {attempt.outcome.value for attempt in history.attempts.values() if attempt.outcome}
        ends |= {run.state.value for run in history.runs.values()}
        deaths += history.deaths
        twins += sum(attempt.twin_slot > 0 for attempt in history.attempts.values())
        kinds |= {entry.kind for entry in history.entries}
        legs = max(legs, *(len(history.exchange.logs(token)) for token in history.attempts))
        held += sum(job.holds > 0 for job in history.jobs.values())
        released += sum(job.releases > 0 for job in history.jobs.values())
    assert ends == {"finished", "failed", "cancelled"}
    assert outcomes >= {"finished", "continue", "evicted", "over-time", "lost", "rejected", "crashed"}
    assert outcomes >= {"wrong-output", "out-of-memory", "cancelled", "stalled", "network", "out-of-disk"}
    assert deaths > 20
    assert twins > 5
    assert kinds == set(EntryKind)
    assert legs > 5
    assert held > released > 20


def test_simulate_returns_nothing_for_a_seed_without_faults() -> None:
    calm = next(s for s in range(1000) if draw_scenario(s).weather.evicted_after == 0.0)
    assert simulate(calm) == []
