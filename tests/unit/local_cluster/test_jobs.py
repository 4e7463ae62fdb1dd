"""Jobs of the local cluster: their surroundings, their ends, and their adoption by the next daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.scheduler_harness import PATIENCE, LocalHarness, await_death, process_ids
from outlast.local_cluster.job import Request
from outlast.local_cluster.processes import start_ticks
from outlast.node.protocol import Outcome
from outlast.schedulers.base import JobPhase
from outlast.schedulers.local import Host


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


SURROUNDINGS = """
import json, os, signal, sys
found = {
    "pid": os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(), "environment": dict(os.environ),
    "stdin": os.readlink("/proc/self/fd/0"),
    "descriptors": [fd for fd in os.listdir("/proc/self/fd")
                    if int(fd) > 2 and os.path.exists("/proc/self/fd/" + fd)],
    "signals": {name: str(signal.getsignal(getattr(signal, name))) for name in
                ("SIGTERM", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGHUP")},
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "job": job,
}
"""


def test_a_job_has_its_own_session_and_nothing_of_the_daemon(
    cluster: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OUTLAST_TOKEN", "of the submitter")
    target = cluster.directory / "found.json"
    request = cluster.request(SURROUNDINGS + "json.dump(found, open(%r, 'w'))" % str(target))
    job = cluster.scheduler.submit([request])[request.token].job
    view = cluster.await_end(request.token)[request.token]
    found = json.loads(target.read_text())
    assert found["session"] == found["pid"]
    assert found["stdin"] == os.devnull
    assert found["descriptors"] == []
    assert set(found["signals"].values()) == {str(signal.SIG_DFL)}
    assert found["blocked"] == 0
    assert found["job"] == found["environment"]["OUTLAST_LOCAL_JOB"] == job
    assert found["environment"]["OUTLAST_HOST"] == view.host
    assert found["environment"]["PATH"] == os.environ["PATH"]
    assert found["environment"]["OMP_NUM_THREADS"] == "3"
    assert not {"SECRET_API_KEY", "OUTLAST_TOKEN"} & set(found["environment"])
    assert "hunter2" not in (cluster.place / "jobs.jsonl").read_text()


def test_a_job_has_the_environment_of_its_own_submission_not_of_the_daemons_start(
    cluster: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.scheduler.daemon_pid()
    for number in range(2):
        monkeypatch.setenv("VIRTUAL_ENV", "/venv-%d" % number)
        request = cluster.request("import os; print(os.environ['VIRTUAL_ENV'])")
        cluster.scheduler.submit([request])
        cluster.await_end(request.token)
        assert Path(request.log).read_text() == "/venv-%d\n" % number


def test_a_job_with_gpus_knows_the_numbers_of_its_own(cluster: LocalHarness) -> None:
    cluster.scheduler = cluster.another_adapter(hosts={"alpha": Host(cpus=2, gpus=3)})
    held = cluster.fifo("held")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])\n" + held.wait_code
    requests = [cluster.request(code, gpus=2), cluster.request(code, gpus=1)]
    cluster.scheduler.submit(requests)
    held.release()
    cluster.await_end(*(request.token for request in requests))
    assert [Path(request.log).read_text().strip() for request in requests] == ["0,1", "2"]


def test_any_process_with_the_token_of_a_killed_job_is_killed(
    cluster: LocalHarness,
) -> None:
    ready = cluster.fifo("ready")
    request = cluster.request(ready.notify_code() + "import signal; signal.pause()")
    with subprocess.Popen(["sleep", "600"], env={"OUTLAST_TOKEN": request.token}) as elsewhere:
        cluster.scheduler.submit([request])
        ready.read()
        cluster.scheduler.kill(request.token)
        try:
            assert elsewhere.wait(PATIENCE) == -signal.SIGKILL
        finally:
            elsewhere.kill()


def test_an_exception_in_a_job_is_exit_code_1_with_its_traceback_in_the_log(cluster: LocalHarness) -> None:
    request = cluster.request("raise RuntimeError('no such thing')")
    cluster.scheduler.submit([request])
    assert cluster.await_end(request.token)[request.token].exit_code == 1
    assert "RuntimeError: no such thing" in Path(request.log).read_text()


def test_a_job_whose_log_cannot_be_written_ends_with_the_reason(cluster: LocalHarness) -> None:
    (cluster.directory / "file").write_text("")
    request = cluster.request(log=str(cluster.directory / "file" / "log"))
    cluster.scheduler.submit([request])
    view = cluster.await_end(request.token)[request.token]
    assert view.exit_code == 126
    assert view.reason.startswith("the job could not be set up")
    assert "/file" in view.reason


def test_the_warning_comes_one_grace_before_the_limit_or_at_three_quarters_of_a_short_time() -> None:
    raw = {"token": "t", "name": "", "order": "/o", "log": "/l", "cpus": 1, "gpus": 0}
    assert Request.from_json({**raw, "time": 100, "grace": 10}).warning_after == 90
    assert Request.from_json({**raw, "time": 4, "grace": 30}).warning_after == 3


def test_an_evicted_job_may_save_within_its_grace(cluster: LocalHarness) -> None:
    ready = cluster.fifo("ready")
    request = cluster.request(
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        + ready.notify_code()
        + "signal.sigwait([signal.SIGTERM])\n"
        "raise SystemExit(85)",
        grace=30.0,
    )
    cluster.scheduler.submit([request])
    ready.read()
    cluster.scheduler.evict(request.token)
    view = cluster.await_end(request.token)[request.token]
    assert view.exit_code == 85
    assert view.reason.startswith("evicted")


def test_an_evicted_job_is_killed_when_its_grace_is_over(cluster: LocalHarness) -> None:
    ready = cluster.fifo("ready")
    request = cluster.request(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + ready.notify_code()
        + "signal.pause()",
        grace=0.1,
    )
    cluster.scheduler.submit([request])
    ready.read()
    cluster.scheduler.evict(request.token)
    view = cluster.await_end(request.token)[request.token]
    assert view.signal == signal.SIGKILL
    assert view.reason.startswith("evicted")


def test_a_killed_job_gets_no_warning(cluster: LocalHarness) -> None:
    ready = cluster.fifo("ready")
    request = cluster.request(
        "import signal, sys\n"
        "for number in (signal.SIGTERM, signal.SIGUSR1):\n"
        "    signal.signal(number, lambda *_: print('warned'))\n"
        + ready.notify_code()
        + "while True: signal.pause()"
    )
    cluster.scheduler.submit([request])
    ready.read()
    cluster.scheduler.kill(request.token)
    view = cluster.await_end(request.token)[request.token]
    assert (view.signal, view.exit_code, view.outcome) == (signal.SIGKILL, None, None)
    assert view.reason.startswith("killed without warning")
    assert Path(request.log).read_text() == ""


def test_processes_that_a_finished_job_left_running_are_killed(cluster: LocalHarness) -> None:
    pids = cluster.fifo("pids")
    request = cluster.request(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True, env={})\n"
        + pids.notify_code("child.pid")
    )
    cluster.scheduler.submit([request])
    ((pid, ticks),) = process_ids(pids.read())
    assert cluster.await_end(request.token)[request.token].exit_code == 0
    await_death(pid, ticks)


def test_an_ended_jobs_leftovers_are_killed_and_its_neighbours_are_not(cluster: LocalHarness) -> None:
    pids, held = cluster.fifo("pids"), cluster.fifo("held")
    neighbour = cluster.request(
        "import os, subprocess\n"
        "if os.fork() == 0:\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True, env={})\n"
        + "    "
        + pids.notify_code("child.pid")
        + "    os._exit(0)\n"
        + held.wait_code
    )
    cluster.scheduler.submit([neighbour])
    ((pid, ticks),) = process_ids(pids.read())
    other = cluster.request()
    cluster.scheduler.submit([other])
    cluster.await_end(other.token)
    assert start_ticks(pid) == ticks
    held.release()
    assert cluster.await_end(neighbour.token)[neighbour.token].exit_code == 0
    await_death(pid, ticks)


def adopted(cluster: LocalHarness, code: str, **wish: object) -> tuple[str, tuple[int, int]]:
    """Return the token and the process of a running job whose daemon was killed."""
    pids = cluster.fifo("pids")
    request = cluster.request("import os, signal\n" + pids.notify_code("os.getpid()") + code, **wish)
    cluster.scheduler.submit([request])
    (identity,) = process_ids(pids.read())
    cluster.crash()
    assert cluster.scheduler.poll()[request.token].phase is JobPhase.RUNNING
    return request.token, identity


def test_an_adopted_job_keeps_its_wall_time_limit(cluster: LocalHarness) -> None:
    token, (pid, ticks) = adopted(cluster, "signal.signal(10, print)\nwhile True: signal.pause()", time=2.0)
    view = cluster.await_end(token)[token]
    assert view.outcome is Outcome.OVER_TIME
    assert view.elapsed is not None and view.elapsed >= 2.0
    await_death(pid, ticks)


def test_an_adopted_job_can_be_cancelled_and_its_children_end_with_it(cluster: LocalHarness) -> None:
    below = cluster.fifo("below")
    token, (pid, ticks) = adopted(
        cluster,
        "import subprocess\nsignal.signal(15, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], env={}, start_new_session=True)\n"
        + below.notify_code("child.pid")
        + "signal.pause()",
    )
    ((child, child_ticks),) = process_ids(below.read())
    cluster.scheduler.cancel(list(cluster.scheduler.poll().values()))
    assert cluster.await_end(token)[token].reason.startswith("cancelled")
    await_death(pid, ticks)
    await_death(child, child_ticks)


def test_an_adopted_job_that_vanishes_has_no_exit_code_and_a_reason(cluster: LocalHarness) -> None:
    token, (pid, _) = adopted(cluster, "signal.pause()")
    os.kill(pid, signal.SIGKILL)
    view = cluster.await_end(token)[token]
    assert (view.exit_code, view.signal) == (None, None)
    assert "without a trace" in view.reason


def test_the_exit_code_of_a_job_that_ended_while_no_daemon_ran_is_known(cluster: LocalHarness) -> None:
    pids, held = cluster.fifo("pids"), cluster.fifo("held")
    request = cluster.request(
        "import os\n" + pids.notify_code("os.getpid()") + held.wait_code + "raise SystemExit(8)"
    )
    cluster.scheduler.submit([request])
    ((pid, ticks),) = process_ids(pids.read())
    cluster.crash()
    held.release()
    await_death(pid, ticks)
    assert cluster.scheduler.poll()[request.token].exit_code == 8


def test_a_job_that_ran_before_a_reboot_is_lost(cluster: LocalHarness) -> None:
    pids = cluster.fifo("pids")
    request = cluster.request("import os, signal\n" + pids.notify_code("os.getpid()") + "signal.pause()")
    cluster.scheduler.submit([request])
    ((pid, ticks),) = process_ids(pids.read())
    cluster.crash()
    log = cluster.place / "jobs.jsonl"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    log.write_text(log.read_text().replace(boot, "an earlier boot"))
    view = cluster.scheduler.poll()[request.token]
    assert (view.phase, view.exit_code) == (JobPhase.ENDED, None)
    assert "machine was restarted" in view.reason
    assert start_ticks(pid) == ticks, "the process that has this id now is another one"
    os.kill(pid, signal.SIGKILL)


def test_another_process_with_a_jobs_process_id_is_not_killed(cluster: LocalHarness) -> None:
    pids = cluster.fifo("pids")
    request = cluster.request("import os, signal\n" + pids.notify_code("os.getpid()") + "signal.pause()")
    cluster.scheduler.submit([request])
    ((pid, ticks),) = process_ids(pids.read())
    cluster.crash()
    log = cluster.place / "jobs.jsonl"
    log.write_text(log.read_text().replace('"ticks":%d' % ticks, '"ticks":%d' % (ticks - 1)))
    assert "without a trace" in cluster.scheduler.poll()[request.token].reason
    assert start_ticks(pid) == ticks
    os.kill(pid, signal.SIGKILL)


def test_a_job_whose_daemon_died_before_logging_its_start_does_nothing(tmp_path: Path) -> None:
    from outlast.local_cluster.spawn import start_job

    mark = tmp_path / "it-ran"

    def fails(pid: int) -> None:
        raise OSError("no record")

    def run(_order: str, _job: str) -> int:
        mark.write_text("")
        return 0

    with pytest.raises(OSError, match="no record"):
        start_job(
            job="1",
            order="",
            log=str(tmp_path / "log"),
            environment={},
            end_note=tmp_path / "end",
            run=run,
            record=fails,
        )
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 126
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_that_is_a_link_or_a_pipe_is_not_written_to_and_ends_the_job_with_the_path(
    cluster: LocalHarness, kind: str
) -> None:
    request = cluster.request("print('mine now')")
    victim = cluster.directory / "victim"
    victim.write_text("mine")
    log = Path(request.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        log.symlink_to(victim)
    else:
        os.mkfifo(log)
    cluster.scheduler.submit([request])
    view = cluster.await_end(request.token)[request.token]
    assert view.exit_code == 126 and str(log) in view.reason
    assert victim.read_text() == "mine"
