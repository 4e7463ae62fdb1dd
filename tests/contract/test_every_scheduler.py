"""The contract of a scheduler adapter: what the controller relies on, for every scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.scheduler_harness import SchedulerHarness, await_death, kill, process_ids
from outlast.node.protocol import Outcome
from outlast.schedulers.base import JobPhase, JobView, SchedulerUnavailable, SubmitStatus


def test_an_accepted_job_appears_in_the_next_poll_under_its_token(cluster: SchedulerHarness) -> None:
    held = cluster.fifo("held")
    request = cluster.request(held.wait_code)
    results = cluster.scheduler.submit([request])
    assert results[request.token].status is SubmitStatus.ACCEPTED
    view = cluster.scheduler.poll()[request.token]
    assert view.token == request.token
    assert view.job == results[request.token].job
    held.release()


@pytest.mark.parametrize("code", [0, 7])
def test_a_job_runs_to_its_end_and_its_exit_code_is_reported(cluster: SchedulerHarness, code: int) -> None:
    request = cluster.request("raise SystemExit(%d)" % code)
    cluster.scheduler.submit([request])
    view = cluster.await_end(request.token)[request.token]
    assert (view.exit_code, view.signal, view.outcome) == (code, None, None)
    assert view.host in cluster.scheduler.hosts()
    assert view.started is not None and view.ended is not None and view.elapsed is not None
    assert view.elapsed == pytest.approx(view.bringing + view.ended - view.started, abs=1.0)


def test_a_job_at_its_wall_time_limit_is_warned_and_then_killed(cluster: SchedulerHarness) -> None:
    warned = cluster.fifo("warned")
    request = cluster.request(
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [%d])\n"
        "signal.sigwait([%d])\n"
        % (cluster.limit_signal, cluster.limit_signal)
        + warned.notify_code("'warned'")
        + "signal.pause()",
        time=cluster.short_time,
        grace=cluster.short_grace,
    )
    cluster.scheduler.submit([request])
    assert warned.read() == "warned"
    over = (JobPhase.ENDED, JobPhase.HELD)
    view = cluster.poll_until(lambda views: views[request.token].phase in over)[request.token]
    assert view.outcome is Outcome.OVER_TIME
    assert view.exit_code is None
    assert view.elapsed is not None and view.elapsed >= cluster.short_time
    assert "limit" in view.reason


def test_a_cancelled_job_that_waits_never_starts(cluster: SchedulerHarness) -> None:
    held = cluster.fifo("held")
    cpus = cluster.full_host_cpus
    running = [cluster.request(held.wait_code, cpus=cpus), cluster.request(held.wait_code, cpus=cpus)]
    mark = cluster.directory / "it-ran"
    waiting = cluster.request("open(%r, 'w')" % str(mark), cpus=cpus)
    cluster.scheduler.submit(running)
    cluster.await_start(*(request.token for request in running))
    cluster.scheduler.submit([waiting])
    cluster.scheduler.cancel([cluster.scheduler.poll()[waiting.token]])
    view = cluster.await_end(waiting.token)[waiting.token]
    assert view.started is None
    held.release()
    cluster.await_end(*(request.token for request in running))
    assert not mark.exists()


def test_a_cancelled_job_that_runs_gets_a_stop_signal_and_its_exit_code_is_reported(
    cluster: SchedulerHarness,
) -> None:
    ready = cluster.fifo("ready")
    request = cluster.request(
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [%d])\n"
        % cluster.stop_signal
        + ready.notify_code()
        + "signal.sigwait([%d])\n" % cluster.stop_signal
        + "raise SystemExit(9)"
    )
    cluster.scheduler.submit([request])
    ready.read()
    cluster.scheduler.cancel(list(cluster.scheduler.poll().values()))
    code = cluster.await_end(request.token)[request.token].exit_code
    assert code == 9 or (code is None and not cluster.reports_code_of_cancelled)


def test_a_cancelled_job_that_ignores_the_stop_signal_is_killed(cluster: SchedulerHarness) -> None:
    ready = cluster.fifo("ready")
    request = cluster.request(
        "import signal\nsignal.signal(%d, signal.SIG_IGN)\n" % cluster.stop_signal
        + ready.notify_code()
        + "signal.pause()"
    )
    cluster.scheduler.submit([request])
    ready.read()
    cluster.scheduler.cancel(list(cluster.scheduler.poll().values()))
    assert cluster.await_end(request.token)[request.token].exit_code is None


def test_cancelling_a_job_that_ended_is_no_error(cluster: SchedulerHarness) -> None:
    request = cluster.request()
    cluster.scheduler.submit([request])
    views = cluster.await_end(request.token)
    cluster.scheduler.cancel(list(views.values()))
    assert cluster.scheduler.poll()[request.token].exit_code == 0


def test_the_same_token_submitted_twice_is_one_view(cluster: SchedulerHarness) -> None:
    count = cluster.directory / "count"
    request = cluster.request("open(%r, 'a').write('x')" % str(count))
    first = cluster.scheduler.submit([request])[request.token]
    second = cluster.another_adapter().submit([request, request])[request.token]
    assert second.status is SubmitStatus.ACCEPTED
    assert set(cluster.await_end(request.token)) == {request.token}
    if not cluster.deduplicates_tokens:
        return  # there are two jobs in one view, and only one of them can claim the attempt
    assert second.job == first.job
    third = cluster.scheduler.submit([request])[request.token]
    assert third.job == first.job
    assert count.read_text() == "x"


def test_a_submission_to_a_frozen_scheduler_is_unknown_and_the_scheduler_responds_after_the_thaw(
    cluster: SchedulerHarness,
) -> None:
    cluster.freeze()
    hasty = cluster.another_adapter(timeout=0.3)
    request = cluster.request()
    assert hasty.submit([request])[request.token].status is SubmitStatus.UNKNOWN
    with pytest.raises(SchedulerUnavailable):
        hasty.poll()
    cluster.thaw()
    if cluster.accepts_while_frozen:
        assert cluster.await_end(request.token)[request.token].exit_code == 0
    else:
        cluster.scheduler.poll()


def test_a_scheduler_that_died_and_came_back_has_lost_no_job(cluster: SchedulerHarness) -> None:
    held = cluster.fifo("held")
    ended = cluster.request("raise SystemExit(3)")
    cpus = cluster.full_host_cpus
    running = [cluster.request(held.wait_code + "raise SystemExit(%d)" % code, cpus=cpus) for code in (4, 5)]
    waiting = cluster.request("raise SystemExit(6)", cpus=cpus)
    cluster.scheduler.submit([ended])
    cluster.await_end(ended.token)
    cluster.scheduler.submit([*running, waiting])
    cluster.await_start(*(request.token for request in running))
    cluster.crash()
    views = cluster.scheduler.poll()
    assert {view.phase for view in views.values()} == set(JobPhase) - {JobPhase.HELD}, views
    held.release()
    everything = [ended, *running, waiting]
    views = cluster.await_end(*(request.token for request in everything))
    assert [views[request.token].exit_code for request in everything] == [3, 4, 5, 6]


def test_forty_jobs_of_one_submission_get_a_result_each_and_all_run(cluster: SchedulerHarness) -> None:
    requests = [cluster.request("raise SystemExit(%d)" % number) for number in range(40)]
    results = cluster.scheduler.submit(requests)
    assert {result.status for result in results.values()} == {SubmitStatus.ACCEPTED}
    assert len({result.job for result in results.values()}) == 40
    views = cluster.await_end(*(request.token for request in requests))
    assert [views[request.token].exit_code for request in requests] == list(range(40))
    assert {view.host for view in views.values()} == {"alpha", "beta"} <= set(cluster.scheduler.hosts())


def test_a_poll_is_one_call_however_many_jobs_there_are(cluster: SchedulerHarness) -> None:
    requests = [cluster.request() for _ in range(10)]
    cluster.scheduler.submit(requests)
    with cluster.record_calls() as calls:
        assert len(cluster.scheduler.poll()) == 10
    assert len(calls) == 1


def test_a_job_runs_on_no_host_that_it_avoids(cluster: SchedulerHarness) -> None:
    requests = [cluster.request(avoid=("alpha",)) for _ in range(4)]
    cluster.scheduler.submit(requests)
    views = cluster.await_end(*(request.token for request in requests))
    assert {view.host for view in views.values()} == {"beta"}


@pytest.mark.parametrize("resources", [{"cpus": 1000}, {"gpus": 50}, {"avoid": ("alpha", "beta")}])
def test_a_request_that_no_host_can_satisfy_is_rejected_for_good_or_waits_with_the_reason(
    cluster: SchedulerHarness, resources: dict[str, object]
) -> None:
    bad, good = cluster.request(**resources), cluster.request()
    results = cluster.scheduler.submit([bad, good])
    if not cluster.rejects_impossible_requests:
        cluster.await_end(good.token)
        view = cluster.poll_until(lambda views: bool(views[bad.token].reason))[bad.token]
        assert view.phase is JobPhase.QUEUED
        return
    assert results[bad.token].status is SubmitStatus.REJECTED
    assert not results[bad.token].transient
    assert results[bad.token].reason
    assert results[good.token].status is SubmitStatus.ACCEPTED
    assert bad.token not in cluster.scheduler.poll()


def test_the_log_contains_what_the_job_and_its_children_wrote(cluster: SchedulerHarness) -> None:
    request = cluster.request(
        "import os, sys\nprint('to stdout: ä', flush=True)\n"
        "print('to stderr', file=sys.stderr)\nos.system('echo child')"
    )
    Path(request.log).parent.mkdir(parents=True)
    Path(request.log).write_text("before\n")
    cluster.scheduler.submit([request])
    cluster.await_end(request.token)
    lines = Path(request.log).read_text(encoding="utf-8").splitlines()
    assert lines == [*(["before"] if cluster.appends_to_log else []), "to stdout: ä", "to stderr", "child"]


def test_a_dead_scheduler_is_distinguished_from_one_without_jobs(cluster: SchedulerHarness) -> None:
    request = cluster.request()
    cluster.make_unreachable()
    with pytest.raises(SchedulerUnavailable):
        cluster.scheduler.poll()
    with pytest.raises(SchedulerUnavailable):
        cluster.scheduler.cancel([JobView(request.token, "1", JobPhase.QUEUED)])
    result = cluster.scheduler.submit([request])[request.token]
    assert result.status is not SubmitStatus.ACCEPTED
    assert result.status is SubmitStatus.UNKNOWN or result.transient
    assert result.reason


def test_no_process_of_a_killed_job_survives_not_even_a_hidden_one(cluster: SchedulerHarness) -> None:
    pids = cluster.fifo("pids")
    # A grandchild with its own session, no environment and a dead parent, which starts one more process.
    hidden = "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600'], env={}); "
    hidden += "open(%r, 'w').write('%%d %%d' %% (os.getpid(), child.pid)); time.sleep(600)" % str(pids.path)
    request = cluster.request(
        "import os, signal, subprocess, sys\n"
        "if os.fork() == 0:\n"
        "    subprocess.Popen([sys.executable, '-S', '-c', %r], env={}, start_new_session=True)\n"
        "    os._exit(0)\n"
        "signal.pause()\n" % hidden
    )
    cluster.scheduler.submit([request])
    processes = process_ids(pids.read())
    cluster.kill_without_warning(request.token)
    view = cluster.await_end(request.token)[request.token]
    assert view.exit_code is None and view.outcome is not Outcome.OVER_TIME
    if not cluster.kills_hidden_processes:
        kill(processes)
    for pid, ticks in processes:
        await_death(pid, ticks)


def test_jobs_of_another_experiment_are_not_listed(cluster: SchedulerHarness) -> None:
    request = cluster.request()
    cluster.scheduler.submit([request])
    assert cluster.another_adapter(group="another").poll() == {}
