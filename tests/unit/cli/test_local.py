"""`outlast local`: what the local cluster does, for people, and trouble on it by hand."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from contract.scheduler_harness import LocalRehearsal
from outlast.cli.commands import local
from outlast.errors import BadInput, OutlastError
from outlast.schedulers.base import JobRequest

#: A job that leaves with 7 when it is asked to, and with 1 when nobody asks it for too long.
POLITE = "import os, signal, time; signal.signal(15, lambda *_: os._exit(7))\n%stime.sleep(60); os._exit(1)\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRehearsal]:
    rehearsal = LocalRehearsal(tmp_path)
    monkeypatch.setenv("OUTLAST_LOCAL_ROOT", str(rehearsal.root))
    yield rehearsal
    rehearsal.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(local.command, words)


def said(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: str) -> str:
    error = run(*words).exception
    assert isinstance(error, OutlastError), error
    return str(error)


def start(cluster: LocalRehearsal, name: str, group: str = "experiment") -> JobRequest:
    """A job that runs until it is ended, and has told that it is ready to be."""
    ready = cluster.fifo(name)
    request = replace(cluster.request(POLITE % ready.tell()), name=name)
    cluster.another_adapter(group=group).submit([request])
    ready.read()
    return request


def test_looking_at_a_cluster_that_never_was_says_so_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_LOCAL_ROOT", str(tmp_path))
    assert "is not running" in said("status")
    assert json.loads(said("status", "--json")) == {
        "cluster": "local",
        "running": False,
        "hosts": {},
        "jobs": [],
    }
    assert "is not running" in said("stop")
    assert "no job 1" in refusal("kill", "1")
    assert not list(tmp_path.iterdir())


def test_status_names_hosts_slots_and_the_jobs_of_all_experiments(cluster: LocalRehearsal) -> None:
    first = start(cluster, "digits-001", group="one")
    second = start(cluster, "speech-004", group="another")
    waits = replace(cluster.request(), name="speech-005")
    cluster.scheduler.submit([waits])
    told = json.loads(said("status", "--json"))
    assert told["running"] and told["pid"] == cluster.scheduler.daemon_pid()
    taken = {"cpus": 1, "gpus": 0, "cpus_taken": 1, "gpus_taken": 0}
    assert told["hosts"] == {"alpha": taken, "beta": taken}
    jobs = [(job["job"], job["name"], job["token"], job["phase"], job["group"]) for job in told["jobs"]]
    assert jobs == [
        ("1", "digits-001", first.token, "running", "one"),
        ("2", "speech-004", second.token, "running", "another"),
        ("3", "speech-005", waits.token, "queued", "experiment"),
    ]
    lines = [line.split() for line in said("status").splitlines()]
    assert ["alpha", "1", "of", "1", "0", "of", "0"] in lines
    assert ["1", "digits-001", "running", "alpha"] in [line[:4] for line in lines]
    assert ["3", "speech-005", "queued", "-", "-", "waits"] in [line[:6] for line in lines]


def test_a_killed_job_gets_no_warning(cluster: LocalRehearsal) -> None:
    job = start(cluster, "digits-001")
    assert "digits-001" in said("kill", "1")
    assert cluster.await_end(job.token)[job.token].signal == signal.SIGKILL


def test_an_evicted_job_gets_notice_and_may_leave_by_itself(cluster: LocalRehearsal) -> None:
    job = start(cluster, "digits-001")
    assert "digits-001" in said("evict", "1")
    assert cluster.await_end(job.token)[job.token].exit_code == 7


def test_a_job_is_found_by_the_name_of_its_run_too(cluster: LocalRehearsal) -> None:
    job = start(cluster, "digits-001")
    said("kill", "digits")
    assert cluster.await_end(job.token)[job.token].signal == signal.SIGKILL
    assert "no job digits" in refusal("kill", "digits"), "one that is over is not meant"


def test_a_name_that_two_jobs_have_kills_neither(cluster: LocalRehearsal) -> None:
    start(cluster, "digits-001")
    start(cluster, "digits-002")
    assert "1 (digits-001), 2 (digits-002)" in refusal("kill", "digits")
    assert [job["phase"] for job in json.loads(said("status", "--json"))["jobs"]] == ["running", "running"]


def test_a_job_that_does_not_run_cannot_be_killed(cluster: LocalRehearsal) -> None:
    start(cluster, "digits-001")
    start(cluster, "digits-002")
    cluster.scheduler.submit([replace(cluster.request(), name="digits-003")])
    assert "job 3 (digits-003) is queued" in refusal("kill", "3")
    assert "there are 1 (digits-001), 2" in refusal("evict", "99")


def test_stop_refuses_while_there_are_jobs_unless_they_may_be_killed(cluster: LocalRehearsal) -> None:
    start(cluster, "digits-001")
    assert isinstance(run("stop").exception, BadInput)
    assert json.loads(said("status", "--json"))["jobs"][0]["phase"] == "running"
    assert "is stopped" in said("stop", "--force")
    assert not (cluster.place / "socket").exists()


def test_looking_at_a_stopped_cluster_does_not_start_it(cluster: LocalRehearsal) -> None:
    cluster.scheduler.daemon_pid()
    said("stop")
    assert "is not running" in said("status")
    assert not (cluster.place / "socket").exists()


def test_jobs_whose_daemon_was_killed_are_still_seen_and_can_be_killed(cluster: LocalRehearsal) -> None:
    job = start(cluster, "digits-001")
    cluster.crash()
    (found,) = json.loads(said("status", "--json"))["jobs"]
    assert (found["token"], found["phase"]) == (job.token, "running")
    said("kill", "1")
    cluster.await_end(job.token)


def test_a_cluster_of_another_name_is_another_cluster(cluster: LocalRehearsal) -> None:
    start(cluster, "digits-001")
    assert "local cluster gpu is not running" in said("status", "--name", "gpu")
    assert "local cluster gpu has no job 1" in refusal("kill", "1", "--name", "gpu")


def test_of_very_many_jobs_those_that_are_not_over_are_shown_first() -> None:
    jobs = [{"job": str(n), "name": "r-%03d" % n, "phase": "ended", "host": "a"} for n in range(40)]
    jobs.append({"job": "40", "name": "r-040", "phase": "running", "host": "a", "elapsed": 3.0})
    told = {"pid": 1, "hosts": {}, "jobs": jobs}
    text = local._text("local", told, everything=False)
    assert "r-040" in text and "and 11 more" in text
    assert "more" not in local._text("local", told, everything=True)
