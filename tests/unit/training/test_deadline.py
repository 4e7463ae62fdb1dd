"""When to stop: in time for the last save, and not much before."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from outlast.training.deadline import Deadline


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def make_deadline(time: Time, left: float, grace: float) -> Deadline:
    return Deadline(time.now + left, grace, now=time)


def train(deadline: Deadline, time: Time, step: float, save_every: int = 0, save: float = 0.0) -> float:
    """Train until should_stop() and return the time left for the last save."""
    for number in range(1, 1_000_000):
        time.now += step
        if deadline.should_stop():
            return deadline.time_left()
        if save_every and number % save_every == 0:
            time.now += save
            deadline.note_blocked(save)
            deadline.note_saved(save)
    raise AssertionError("never stopped")


@pytest.fixture
def default_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_without_a_deadline_time_left_is_infinite() -> None:
    deadline = Deadline()
    assert deadline.time_left() == math.inf
    assert not deadline.should_stop()


def test_time_left_follows_the_monotonic_clock_not_the_wall_clock(time: Time) -> None:
    deadline = make_deadline(time, left=100, grace=30)
    time.now += 40
    assert deadline.time_left() == 60


@pytest.mark.parametrize("step", [0.1, 1.0, 20.0, 200.0])
@pytest.mark.parametrize("save", [0.01, 5.0, 50.0, 300.0])
def test_there_is_always_time_for_one_more_save_as_slow_as_the_slowest(
    time: Time, step: float, save: float
) -> None:
    left = train(make_deadline(time, left=3600, grace=30), time, step, save_every=3, save=save)
    assert left >= save


@pytest.mark.parametrize(("step", "save"), [(0.1, 0.01), (1.0, 5.0), (20.0, 50.0)])
def test_little_time_is_wasted(time: Time, step: float, save: float) -> None:
    left = train(make_deadline(time, left=3600, grace=30), time, step, save_every=10, save=save)
    assert left <= max(15.0, 2 * save + 1.1 * step) + 1e-6


def test_before_the_first_save_half_the_grace_is_reserved_for_it(time: Time) -> None:
    left = train(make_deadline(time, left=3600, grace=60), time, step=4.0)
    assert 30.0 <= left <= 34.0


def test_without_a_signal_half_the_grace_is_the_minimum(time: Time) -> None:
    left = train(make_deadline(time, left=3600, grace=30), time, step=0.5, save_every=3, save=0.1)
    assert 14.0 <= left <= 15.0


def test_a_slow_first_step_does_not_shorten_the_job_for_good(time: Time) -> None:
    deadline = make_deadline(time, left=3600, grace=10)
    deadline.should_stop()
    time.now += 600
    assert not deadline.should_stop()
    assert train(deadline, time, step=1.0) <= 6.0


def test_the_time_of_a_save_is_not_counted_as_a_step(time: Time) -> None:
    left = train(make_deadline(time, left=1000, grace=1), time, step=0.1, save_every=5, save=50.0)
    assert left <= 2 * 50.0 + 50.0


def test_a_grace_longer_than_the_job_leaves_time_to_train(time: Time) -> None:
    deadline = make_deadline(time, left=4, grace=30)
    time.now += 1
    assert not deadline.should_stop()


@pytest.mark.parametrize(("save", "left"), [(40.0, 70.0), (80.0, 80.0)])
def test_a_margin_for_slow_saves_does_not_cost_more_than_half_of_the_job(
    time: Time, save: float, left: float
) -> None:
    deadline = make_deadline(time, left=140, grace=10)
    deadline.note_saved(save)
    assert train(deadline, time, step=0.1) == pytest.approx(left, abs=0.3)


def test_a_last_step_that_is_a_little_slower_than_the_others_is_in_time(time: Time) -> None:
    deadline = make_deadline(time, left=1000, grace=2)
    deadline.note_saved(1.0)
    train(deadline, time, step=90.0)
    time.now += 90.0 * 1.05
    assert deadline.time_left() >= 1.0


def test_should_stop_stays_true(time: Time) -> None:
    deadline = make_deadline(time, left=10, grace=2)
    time.now += 9.5
    assert deadline.should_stop()
    time.now -= 9
    assert deadline.should_stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_each_stop_signal_makes_should_stop_true(default_signals: None, number: int) -> None:
    deadline = Deadline()
    deadline.install_handlers()
    deadline.install_handlers()
    assert not deadline.should_stop()
    os.kill(os.getpid(), number)
    assert deadline.should_stop()
    os.kill(os.getpid(), number)
    assert deadline.should_stop()


def test_an_existing_handler_is_kept(default_signals: None) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    deadline = Deadline()
    deadline.install_handlers()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert seen == [signal.SIGUSR1]
    assert not deadline.should_stop()


def test_outside_the_main_thread_no_handlers_are_installed(default_signals: None) -> None:
    thread = threading.Thread(target=Deadline().install_handlers)
    thread.start()
    thread.join(10)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


GROUP = """
import os, signal, sys
import outlast
ready, notify = os.pipe()
again, release = os.pipe()
child = os.fork()
if child == 0:
    os.write(notify, b"x")
    os.read(again, 1)
    os._exit(7)
os.read(ready, 1)
os.killpg(0, signal.SIGTERM)
assert outlast.should_stop()
os.write(release, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, "the worker died of the stop signal"
outlast.leave()
"""


def test_a_stop_signal_to_the_whole_group_leaves_forked_workers_alive() -> None:
    environment = {**os.environ, "OUTLAST_TOKEN": "t"}
    done = subprocess.run(
        [sys.executable, "-c", GROUP],
        env=environment,
        start_new_session=True,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (85, "")
