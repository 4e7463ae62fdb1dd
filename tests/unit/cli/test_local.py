"""`outlast local`: the state of the local cluster, and killing and evicting its jobs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from contract.scheduler_harness import LocalHarness
from outlast.cli.commands import local
from outlast.errors import BadInput, OutlastError
from outlast.schedulers.base import JobRequest

#: A job that exits with 7 at the stop signal, and with 1 after a minute without it.
POLITE = "import os, signal, time; signal.signal(15, lambda *_: os._exit(7))\n%stime.sleep(60); os._exit(1)\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    monkeypatch.setenv("OUTLAST_LOCAL_ROOT", str(harness.root))
    yield harness
    harness.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(local.command, words)


def output_of(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*words: str) -> str:
    error = run(*words).exception
    assert isinstance(error, OutlastError), error
    return str(error)


def start(cluster: LocalHarness, name: str, group: str = "experiment") -> JobRequest:
    """Start a job that runs until it is stopped; return when it is ready for the signal."""
    ready = cluster.fifo(name)
    request = replace(cluster.request(POLITE % ready.notify_code()), name=name)
    cluster.another_adapter(group=group).submit([request])
    ready.read()
    return request


def test_status_of_a_cluster_that_never_existed_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_LOCAL_ROOT", str(tmp_path))
    assert "is not running" in output_of("status")
    assert json.loads(output_of("status", "--json")) == {
        "cluster": "local",
        "running": False,
        "hosts": {},
        "jobs": [],
    }
    assert "is not running" in output_of("stop")
    assert "no job 1" in error_of("kill", "1")
    assert not list(tmp_path.iterdir())


def test_status_names_hosts_slots_and_the_jobs_of_all_experiments(cluster: LocalHarness) -> None:
    first = start(cluster, "digits-001", group="one")
    second = start(cluster, "speech-004", group="another")
    waits = replace(cluster.request(), name="speech-005")
    cluster.scheduler.submit([waits])
    state = json.loads(output_of("status", "--json"))
    assert state["running"] and state["pid"] == cluster.scheduler.daemon_pid()
    taken = {"cpus": 1, "gpus": 0, "cpus_taken": 1, "gpus_taken": 0}
    assert state["hosts"] == {"alpha": taken, "beta": taken}
    jobs = [(job["job"], job["name"], job["token"], job["phase"], job["group"]) for job in state["jobs"]]
    assert jobs == [
        ("1", "digits-001", first.token, "running", "one"),
        ("2", "speech-004", second.token, "running", "another"),
        ("3", "speech-005", waits.token, "queued", "experiment"),
    ]
    lines = [line.split() for line in output_of("status").splitlines()]
    assert ["alpha", "1", "of", "1", "0", "of", "0"] in lines
    assert ["1", "digits-001", "running", "alpha"] in [line[:4] for line in lines]
    assert ["3", "speech-005", "queued", "-", "-", "waits"] in [line[:6] for line in lines]


def test_a_killed_job_gets_no_warning(cluster: LocalHarness) -> None:
    job = start(cluster, "digits-001")
    assert "digits-001" in output_of("kill", "1")
    assert cluster.await_end(job.token)[job.token].signal == signal.SIGKILL


def test_an_evicted_job_gets_the_stop_signal_and_may_exit_by_itself(cluster: LocalHarness) -> None:
    job = start(cluster, "digits-001")
    assert "digits-001" in output_of("evict", "1")
    assert cluster.await_end(job.token)[job.token].exit_code == 7


def test_a_job_can_be_named_by_its_run(cluster: LocalHarness) -> None:
    job = start(cluster, "digits-001")
    output_of("kill", "digits")
    assert cluster.await_end(job.token)[job.token].signal == signal.SIGKILL
    assert "no job digits" in error_of("kill", "digits"), "a job that has ended does not match"


def test_a_name_that_matches_two_jobs_kills_neither(cluster: LocalHarness) -> None:
    start(cluster, "digits-001")
    start(cluster, "digits-002")
    assert "1 (digits-001), 2 (digits-002)" in error_of("kill", "digits")
    assert [job["phase"] for job in json.loads(output_of("status", "--json"))["jobs"]] == [
        "running",
        "running",
    ]


def test_a_job_that_is_not_running_cannot_be_killed(cluster: LocalHarness) -> None:
    start(cluster, "digits-001")
    start(cluster, "digits-002")
    cluster.scheduler.submit([replace(cluster.request(), name="digits-003")])
    assert "job 3 (digits-003) is queued" in error_of("kill", "3")
    assert "there are 1 (digits-001), 2" in error_of("evict", "99")


def test_stop_refuses_while_there_are_jobs_unless_forced(cluster: LocalHarness) -> None:
    start(cluster, "digits-001")
    assert isinstance(run("stop").exception, BadInput)
    assert json.loads(output_of("status", "--json"))["jobs"][0]["phase"] == "running"
    assert "is stopped" in output_of("stop", "--force")
    assert not (cluster.place / "socket").exists()


def test_status_of_a_stopped_cluster_does_not_start_it(cluster: LocalHarness) -> None:
    cluster.scheduler.daemon_pid()
    output_of("stop")
    assert "is not running" in output_of("status")
    assert not (cluster.place / "socket").exists()


def test_jobs_whose_daemon_was_killed_are_still_listed_and_can_be_killed(cluster: LocalHarness) -> None:
    job = start(cluster, "digits-001")
    cluster.crash()
    (found,) = json.loads(output_of("status", "--json"))["jobs"]
    assert (found["token"], found["phase"]) == (job.token, "running")
    output_of("kill", "1")
    cluster.await_end(job.token)


def test_a_cluster_of_another_name_is_another_cluster(cluster: LocalHarness) -> None:
    start(cluster, "digits-001")
    assert "local cluster gpu is not running" in output_of("status", "--name", "gpu")
    assert "local cluster gpu has no job 1" in error_of("kill", "1", "--name", "gpu")


def test_jobs_that_have_not_ended_are_shown_first() -> None:
    jobs = [{"job": str(n), "name": "r-%03d" % n, "phase": "ended", "host": "a"} for n in range(40)]
    jobs.append({"job": "40", "name": "r-040", "phase": "running", "host": "a", "elapsed": 3.0})
    state = {"pid": 1, "hosts": {}, "jobs": jobs}
    text = local._status_text("local", state, everything=False)
    assert "r-040" in text and "and 11 more" in text
    assert "more" not in local._status_text("local", state, everything=True)
