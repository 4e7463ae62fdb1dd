"""Queue time, CPU-hours, GPU-hours and efficiencies: only what was measured counts as measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.domain.accounts import AttemptAccount, LegAccount
from outlast.domain.attempt_end import end_attempt
from outlast.domain.model import Attempt, AttemptState, Outcome, Phase, Resources, Run, RunState
from outlast.domain.observation import JobPhase, JobView
from outlast.domain.outcomes import Conclusion
from outlast.domain.resource_use import ResourceUse, of_attempt, total

RUN = Run("r", 0, 1, {}, RunState.ACTIVE, 0.0, 0.0)
RESOURCES = Resources(cpus=4, gpus=2, memory=8 * 10**9)
ATTEMPT = Attempt("r", 1, "a-1", AttemptState.ENDED, 0.0, cpus=4, gpus=2)
SPANS = ((Phase.COMPUTE, 100.0),)


def with_account(**facts: Any) -> Attempt:
    return replace(ATTEMPT, account=AttemptAccount(slot=100.0, spans=SPANS, **facts))


def test_hours_are_the_slot_time_of_all_cpus_and_gpus() -> None:
    use = of_attempt(with_account(queue=30.0), RESOURCES, 3600.0)
    assert use.to_dict() == {
        "queue": 30.0,
        "cpu_hours": 4.0,
        "gpu_hours": 2.0,
        "cpu_hours_used": None,
        "cpu_efficiency": None,
        "gpu_efficiency": None,
        "memory": None,
        "memory_requested": 8 * 10**9,
        "memory_efficiency": None,
    }


def test_efficiencies_are_shares_of_what_was_allocated() -> None:
    use = of_attempt(with_account(cpu=200.0, gpu=0.75, resident=2 * 10**9), RESOURCES, 100.0)
    assert use.cpu_efficiency == pytest.approx(0.5)
    assert use.gpu_efficiency == pytest.approx(0.75)
    assert use.memory_efficiency == pytest.approx(0.25)


def test_idle_is_not_unmeasured() -> None:
    use = of_attempt(with_account(cpu=0.0, gpu=0.0), RESOURCES, 100.0)
    assert (use.cpu_efficiency, use.gpu_efficiency) == (0.0, 0.0)


def test_a_start_without_a_measurement_does_not_count() -> None:
    earlier = (LegAccount(spans=((Phase.COMPUTE, 60.0),)),)
    use = of_attempt(with_account(cpu=200.0, earlier=earlier), RESOURCES, 160.0)
    assert use.cpu_allocated == 640.0 and use.cpu_measured == 400.0
    assert use.cpu_efficiency == pytest.approx(0.5)


def test_starts_are_added_up() -> None:
    earlier = (LegAccount(spans=((Phase.COMPUTE, 300.0),), cpu=600.0, gpu=1.0, resident=5),)
    use = of_attempt(with_account(cpu=200.0, gpu=0.2, resident=3, earlier=earlier), RESOURCES, 400.0)
    assert use.cpu_efficiency == pytest.approx(0.5)
    assert use.gpu_efficiency == pytest.approx(0.8)
    assert use.memory == 5


def test_no_node_can_claim_more_than_was_allocated() -> None:
    use = of_attempt(with_account(cpu=1e10), RESOURCES, 100.0)
    assert use.cpu_efficiency == 1.0


def test_attempts_keep_the_cpus_they_requested_and_old_ones_have_those_of_the_run() -> None:
    larger = Resources(cpus=16, gpus=8)
    assert of_attempt(ATTEMPT, larger, 10.0).cpu_allocated == 40.0
    old = replace(ATTEMPT, cpus=None, gpus=None)
    assert of_attempt(old, larger, 10.0).gpu_allocated == 80.0


def test_the_memory_that_the_scheduler_knows_is_used_if_the_node_has_none() -> None:
    assert of_attempt(with_account(memory=7), RESOURCES, 1.0).memory == 7
    assert of_attempt(replace(ATTEMPT, memory=16), RESOURCES, 1.0).memory_requested == 16


def test_sums_weigh_attempts_by_their_time_and_name_the_fullest_memory() -> None:
    one = ResourceUse(10.0, 100.0, 50.0, 100.0, 50.0, 50.0, 50.0, 1, 4)
    other = ResourceUse(5.0, 300.0, 0.0, 300.0, 300.0, 0.0, 0.0, 3, 4)
    both = total([one, other, ResourceUse()])
    assert (both.queue, both.cpu_allocated) == (15.0, 400.0)
    assert both.cpu_efficiency == pytest.approx(350 / 400) and both.gpu_efficiency == 1.0
    assert (both.memory, both.memory_requested) == (3, 4)
    assert total([]).to_dict()["cpu_efficiency"] is None


def queue_time(attempt: Attempt, view: JobView | None, now: float = 1000.0) -> float:
    ended = end_attempt(RUN, attempt, view, None, Conclusion(Outcome.LOST, "x"), now)
    queue = ended.data["account"].get("queue", 0.0)
    assert isinstance(queue, float)
    return queue


QUEUED = replace(ATTEMPT, state=AttemptState.QUEUED, queued=100.0)
OVER = JobView("a-1", "7", JobPhase.ENDED, started=400.0, ended=500.0, elapsed=150.0)


@pytest.mark.parametrize(
    ("attempt", "view", "expected"),
    [
        (QUEUED, OVER, 250.0),  # between its starts as well
        (QUEUED, replace(OVER, since=390.0), 300.0),  # the time of its first starts is not known
        (replace(QUEUED, started=130.0), None, 30.0),
        (QUEUED, replace(OVER, started=None, ended=160.0, elapsed=0.0), 60.0),  # never started
        (replace(QUEUED, missed=700.0), None, 600.0),
        (QUEUED, None, 900.0),
        (replace(QUEUED, queued=None), OVER, 0.0),
        (replace(QUEUED, queued=2000.0), OVER, 0.0),  # the clocks differ
    ],
)
def test_queue_time_is_the_time_without_a_slot(
    attempt: Attempt, view: JobView | None, expected: float
) -> None:
    assert queue_time(attempt, view) == expected
