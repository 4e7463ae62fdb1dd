"""Holds, evictions and lost starters of a real HTCondor pool, as the adapter tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import Play
from contract.htcondor_harness import PAIR, HTCondorRehearsal
from outlast.domain.model import Outcome
from outlast.schedulers.base import JobPhase, JobRequest, JobView, Sought
from outlast.schedulers.profile import Profile
from support.experiments import Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HTCondorRehearsal]:
    rehearsal = HTCondorRehearsal(tmp_path)
    yield rehearsal
    rehearsal.close()


def held(pool: HTCondorRehearsal, request: JobRequest, *directives: str) -> JobView:
    """Submit it with these lines in its description, and see it held."""
    pool.scheduler = pool.another_adapter(profile=Profile(directives=(PAIR, *directives)))
    pool.scheduler.submit([request])
    return pool.poll_until(lambda views: views[request.token].phase is JobPhase.HELD)[request.token]


def test_results_that_are_not_there_hold_the_job_and_it_may_try_again(pool: HTCondorRehearsal) -> None:
    view = held(pool, pool.request("import shutil; shutil.rmtree('travel')"))
    assert "hold 12/2" in view.reason and "results" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.NODE_TROUBLE, True)
    pool.scheduler.release([view])
    again = pool.poll_until(lambda views: views[view.token].restarts == 1)[view.token]
    assert again.elapsed is None or again.elapsed >= (view.elapsed or 0.0)


def test_input_that_has_gone_from_the_access_point_is_named(pool: HTCondorRehearsal) -> None:
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


def test_more_input_than_is_carried_is_refused_with_what_to_do(pool: HTCondorRehearsal) -> None:
    data = pool.directory / "data.tar"
    data.write_bytes(bytes(3 * 10**6))
    view = held(pool, pool.request(inputs=(str(data),)), "max_transfer_input_mb = 1")
    assert "hold 32" in view.reason and "http or osdf" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.REJECTED, False)
    assert view.started is None


def test_a_job_held_at_its_limit_goes_on_with_what_it_saved_when_it_is_released(
    pool: HTCondorRehearsal,
) -> None:
    save = (
        "import os, signal, time\n"
        "if os.path.exists('travel/saved'): raise SystemExit(4)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open('travel/saved', 'w').close(), os._exit(0)))\n"
        "time.sleep(60)"
    )
    view = held(pool, pool.request(save, time=2.0))
    assert "hold 47" in view.reason and "limit" in view.reason
    assert (view.outcome, view.releasable) == (Outcome.OVER_TIME, True)
    pool.scheduler.release([view])
    end = pool.await_end(view.token)[view.token]
    assert (end.exit_code, end.restarts) == (4, 1)


def told_again(pool: HTCondorRehearsal) -> tuple[JobRequest, Any]:
    told = pool.fifo("told")
    request = pool.request(told.tell("__import__('os').getpid()") + "import time; time.sleep(600)")
    pool.scheduler.submit([request])
    told.read()
    pool.await_start(request.token)
    return request, told


@pytest.mark.parametrize("fast", [False, True], ids=["soft", "fast"])
def test_an_evicted_job_is_started_again_by_itself(pool: HTCondorRehearsal, fast: bool) -> None:
    request, told = told_again(pool)
    pool.evict(request.token, fast)
    told.read()
    view = pool.poll_until(lambda views: views[request.token].restarts == 1)[request.token]
    assert view.phase is JobPhase.RUNNING


def test_a_job_whose_starter_died_is_started_again_by_itself(pool: HTCondorRehearsal) -> None:
    request, told = told_again(pool)
    pool.kill_starter(request.token)
    told.read()
    view = pool.poll_until(lambda views: views[request.token].restarts == 1)[request.token]
    assert (view.phase, view.outcome) == (JobPhase.RUNNING, None)


def test_an_adapter_that_starts_afresh_tells_the_same_as_the_one_before(pool: HTCondorRehearsal) -> None:
    request = pool.request("raise SystemExit(3)")
    job = pool.scheduler.submit([request])[request.token].job
    before = pool.await_end(request.token)[request.token]
    fresh = pool.another_adapter()
    assert fresh.poll([Sought(request.token, job, before.started or 0.0)]) == {request.token: before}


def test_the_end_of_a_job_that_has_left_queue_and_history_is_learnt_from_the_log(
    pool: HTCondorRehearsal, lab: Lab
) -> None:
    """Nobody watched when it was removed, and it never ran: no file of its own tells of it."""
    pool.profile_keys = {**pool.profile_keys, "directives": ["hold = true"]}
    play = Play(pool, lab)
    directory = play.set("true")
    lab.outlast("submit", directory)
    (token,) = pool.scheduler.poll()
    pool.tool("condor_rm", pool.job(token))
    pool.await_empty_queue()
    with pool.without_history():
        assert pool.another_adapter().poll([Sought(token, "", 0.0)]) == {}
        lab.outlast("tick", directory)
    first = play.attempts()[0]
    assert first.outcome is Outcome.CANCELLED
    assert "removed from the queue" in first.detail
