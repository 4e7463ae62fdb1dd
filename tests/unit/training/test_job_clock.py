"""The end of the job is the same moment for all processes, whatever their hosts believe the time to be."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.node import environment, time_limits
from outlast.node.order import WorkOrder
from outlast.training import env, job_clock
from outlast.training.training_session import TrainingSession, read_settings

DAY = 86400.0


def job_environment(seconds: float) -> dict[str, str]:
    """Return the environment that the node program passes to a training process with `seconds` left."""
    order = WorkOrder(
        token="t",
        experiment="e",
        run="r",
        number=1,
        command=("true",),
        exchange="/x",
        scratch="/s",
        checkpoints="/c",
        log="/l",
    )
    limits = time_limits.limits_for(seconds + 30, 5, time.monotonic(), time.time())
    return environment.for_training(order, limits, "/d", "/o", "/p", {})


def time_left(variables: dict[str, str]) -> float:
    return TrainingSession(read_settings(variables)).deadline.time_left()


@pytest.mark.parametrize("ahead", [DAY, -DAY, 0.0])
def test_a_clock_that_is_a_day_off_does_not_change_the_time_left(
    monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    variables = job_environment(100_000)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    for boot in (job_clock.boot_id(), "another host"):
        monkeypatch.setattr(job_clock, "boot_id", lambda boot=boot: boot)
        monkeypatch.setattr(job_clock, "process_age", lambda: 0.0)
        assert 60_000 < time_left(variables) <= 100_001


def test_a_process_on_the_same_host_counts_from_the_start_of_the_training() -> None:
    variables = job_environment(100_000)
    boot, reading = variables[env.CLOCK].split(" ")
    variables[env.CLOCK] = "%s %.3f" % (boot, float(reading) - 70_000)  # the training started that long ago
    assert 0 < time_left(variables) <= 30_001


@pytest.mark.parametrize(
    "clock", ["another-boot 17.0", "", "garbage", "{boot} soon", "{boot} 1e300", "{boot} nan"]
)
def test_a_process_on_another_host_counts_from_its_own_start(
    monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    monkeypatch.setattr(job_clock, "process_age", lambda: 40_000.0)
    variables = {**job_environment(100_000), env.CLOCK: clock.format(boot=job_clock.boot_id())}
    assert 20_000 < time_left(variables) <= 60_001


def test_the_age_of_a_process_counts_from_its_start_and_not_from_the_import() -> None:
    code = (
        "import time\n"
        "began = time.monotonic()\n"
        "while time.monotonic() < began + 0.3: pass\n"
        "from outlast.training import job_clock\n"
        "assert 0.25 < job_clock.process_age() < 600, job_clock.process_age()"
    )
    source = str(Path(job_clock.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source})
    assert job_clock.process_age() > 0


def test_with_a_deadline_alone_the_wall_clock_decides() -> None:
    assert 60_000 < time_left({env.DEADLINE: str(time.time() + 100_000)}) <= 100_001
    assert time_left({}) == math.inf
