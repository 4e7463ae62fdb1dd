"""The time margins of a job: one rule for the node program, the schedulers and the training."""

from __future__ import annotations

import pytest

from outlast.local_cluster.hosts import Need
from outlast.local_cluster.job import Request
from outlast.node import time_limits
from outlast.training.deadline import Deadline

TIMES = [(3600.0, 60.0), (100.0, 30.0), (4.0, 30.0), (120.0, 30.0)]


def test_a_long_limit_keeps_half_a_minute_in_reserve_and_gives_the_whole_grace() -> None:
    limits = time_limits.limits_for(3600, 60, began=1000, began_epoch=5000)
    assert (limits.hard_end, limits.deadline, limits.stop_at) == (4600, 4570, 4510)
    assert limits.deadline_epoch == 8570


def test_a_limit_of_a_few_seconds_is_divided_in_proportion() -> None:
    limits = time_limits.limits_for(4, 30, began=0, began_epoch=0)
    assert (limits.hard_end, limits.deadline, limits.stop_at, limits.grace) == (4, 3.6, 2.6, 1)


@pytest.mark.parametrize(("seconds", "grace"), TIMES)
def test_the_training_limits_its_grace_to_the_same_share_as_the_node_program(
    seconds: float, grace: float
) -> None:
    deadline = Deadline(seconds, grace, now=lambda: 0.0)
    assert seconds - deadline.signal_at == pytest.approx(time_limits.stop_margin(seconds, grace))


@pytest.mark.parametrize(("seconds", "grace"), TIMES)
def test_stop_margin_and_reserve_make_up_the_time_between_stop_signal_and_end(
    seconds: float, grace: float
) -> None:
    limits = time_limits.limits_for(seconds, grace, began=0.0, began_epoch=0.0)
    margins = time_limits.stop_margin(seconds, grace) + time_limits.handover_reserve(seconds)
    assert limits.hard_end - limits.stop_at == pytest.approx(margins)
    assert limits.deadline < limits.last_moment < limits.hard_end


@pytest.mark.parametrize(("seconds", "grace"), TIMES)
def test_the_local_cluster_warns_by_the_same_margin(seconds: float, grace: float) -> None:
    request = Request("t", "n", "o", "l", seconds, grace, Need(1, 0, frozenset()))
    assert seconds - request.warning_after == pytest.approx(time_limits.stop_margin(seconds, grace))
