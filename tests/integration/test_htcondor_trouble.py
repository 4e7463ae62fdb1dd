"""Holds, evictions and lost starters of a real HTCondor pool, as the adapter reports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.htcondor_harness import PAIR, HTCondorHarness
from outlast.domain.model import Outcome
from outlast.schedulers.base import JobPhase, JobRef, JobRequest, JobView
from outlast.schedulers.profile import Profile
from support.experiments import Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HTCondorHarness]:
    harness = HTCondorHarness(tmp_path)
    yield harness
    harness.close()


def hold_job(pool: HTCondorHarness, request: JobRequest, *directives: str) -> JobView:
    """Submit a job with these lines in its description, and wait until it is held."""
    pool.scheduler = pool.another_adapter(profile=Profile(directives=(PAIR, *directives)))
    pool.scheduler.submit([request])
    return pool.poll_until(lambda views: views[request.token].phase is JobPhase.HELD)[request.token]


def test_missing_results_hold_the_job_and_it_may_be_released(pool: HTCondorHarness) -> None:
    view = hold_job(pool, pool.request("import shutil; shutil.rmtree('travel')"))
    assert "hold 12/2" in view.reason and "results" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.NODE_TROUBLE, True)
    pool.scheduler.release([view])
    again = pool.poll_until(lambda views: views[view.token].restarts == 1)[view.token]
    assert again.elapsed is None or again.elapsed >= (view.elapsed or 0.0)


def test_input_that_is_missing_on_the_access_point_is_named(pool: HTCondorHarness) -> None:
    data = pool.directory / "data.tar"
    data.write_bytes(b"x")
    request = pool.request(inputs=(str(data),))
    pool.scheduler = pool.another_adapter(profile=Profile(directives=(PAIR, "hold = true")))
    pool.scheduler.submit([request])
    waiting = pool.poll_until(lambda views: bool(views[request.token].reason))[request.token]
    assert waiting.phase is JobPhase.QUEUED
    data.unlink()
    pool.scheduler.release([waiting])
    view = pool.poll_until(lambda views: views[request.token].phase is JobPhase.HELD)[request.token]
    assert "hold 13/2" in view.reason and "data.tar" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.NOT_FOUND, False)


def test_more_input_than_is_transferred_is_rejected_with_what_to_do(pool: HTCondorHarness) -> None:
    data = pool.directory / "data.tar"
    data.write_bytes(bytes(3 * 10**6))
    view = hold_job(pool, pool.request(inputs=(str(data),)), "max_transfer_input_mb = 1")
    assert "hold 32" in view.reason and "http or osdf" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.REJECTED, False)
    assert view.started is None


def test_a_job_held_at_its_limit_resumes_with_what_it_saved_when_it_is_released(
    pool: HTCondorHarness,
) -> None:
    save = (
        "import os, signal, time\n"
        "if os.path.exists('travel/saved'): raise SystemExit(4)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open('travel/saved', 'w').close(), os._exit(0)))\n"
        "time.sleep(60)"
    )
    view = hold_job(pool, pool.request(save, time=2.0))
    assert "hold 47" in view.reason and "limit" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.OVER_TIME, True)
    pool.scheduler.release([view])
    end = pool.await_end(view.token)[view.token]
    assert (end.exit_code, end.restarts) == (4, 1)


def start_notifying_job(pool: HTCondorHarness) -> tuple[JobRequest, Any]:
    """Start a job that writes to the returned fifo at each of its starts."""
    started = pool.fifo("started")
    request = pool.request(started.notify_code("__import__('os').getpid()") + "import time; time.sleep(600)")
    pool.scheduler.submit([request])
    started.read()
    pool.await_start(request.token)
    return request, started


@pytest.mark.parametrize("fast", [False, True], ids=["soft", "fast"])
def test_an_evicted_job_is_started_again_by_itself(pool: HTCondorHarness, fast: bool) -> None:
    request, started = start_notifying_job(pool)
    pool.evict(request.token, fast)
    started.read()
    view = pool.poll_until(lambda views: views[request.token].restarts == 1)[request.token]
    assert view.phase is JobPhase.RUNNING


def test_a_job_whose_starter_died_is_started_again_by_itself(pool: HTCondorHarness) -> None:
    request, started = start_notifying_job(pool)
    pool.kill_starter(request.token)
    started.read()
    view = pool.poll_until(lambda views: views[request.token].restarts == 1)[request.token]
    assert (view.phase, view.outcome) == (JobPhase.RUNNING, None)


def test_a_new_adapter_returns_the_same_view_as_the_one_before(pool: HTCondorHarness) -> None:
    request = pool.request("raise SystemExit(3)")
    job = pool.scheduler.submit([request])[request.token].job
    before = pool.await_end(request.token)[request.token]
    fresh = pool.another_adapter()
    assert fresh.poll([JobRef(request.token, job, before.started or 0.0)]) == {request.token: before}


def test_the_end_of_a_job_that_has_left_queue_and_history_is_read_from_the_log(
    pool: HTCondorHarness, lab: Lab
) -> None:
    """No controller ran when the job was removed, and it never started: it has no files of its own."""
    pool.profile_keys = {**pool.profile_keys, "directives": ["hold = true"]}
    experiment = ClusterExperiment(pool, lab)
    directory = experiment.write("true")
    lab.outlast("submit", directory)
    (token,) = pool.scheduler.poll()
    pool.tool("condor_rm", pool.job(token))
    pool.await_empty_queue()
    with pool.without_history():
        assert pool.another_adapter().poll([JobRef(token, "", 0.0)]) == {}
        lab.outlast("tick", directory)
    first = experiment.attempts()[0]
    assert first.outcome is Outcome.CANCELLED
    assert "removed from the queue" in first.detail
