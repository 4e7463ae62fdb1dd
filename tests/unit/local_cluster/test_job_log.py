"""The job log: the state of a daemon that was killed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from outlast.local_cluster import job_log as job_log_module
from outlast.local_cluster.hosts import Host, Need
from outlast.local_cluster.job import JobEnding, JobState, LocalJob, Request
from outlast.local_cluster.job_log import REMEMBER_SECONDS, JobLog, JobLogState
from outlast.local_cluster.job_table import JobTable


def job(identity: int, **changes: object) -> LocalJob:
    request = Request("t%d" % identity, "name", "/order", "/log", 60.0, 5.0, Need(1, 0, frozenset({"bad"})))
    made = LocalJob(identity, "group", request, "env", submitted=1.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def running(identity: int) -> LocalJob:
    return job(
        identity,
        phase=JobState.RUNNING,
        host="a",
        gpus=(1,),
        pid=42,
        ticks=7,
        boot="b",
        started=2.0,
        started_monotonic=3.0,
        ending=JobEnding.CANCELLED,
    )


def ended(identity: int, at: float = 9.0) -> LocalJob:
    made = running(identity)
    made.phase, made.ended, made.elapsed, made.signal = JobState.ENDED, at, 7.0, 9
    made.reason, made.ending = "reached its limit", JobEnding.OVER_TIME
    return made


def state_of(*jobs: LocalJob) -> JobLogState:
    return JobLogState(
        jobs={one.id: one for one in jobs},
        environments={"env": {"PATH": "/bin"}},
        hosts={"a": Host(2, 1)},
        next_id=max(one.id for one in jobs) + 1,
    )


@pytest.fixture
def log(tmp_path: Path) -> JobLog:
    made = JobLog(tmp_path / "jobs.jsonl")
    made.rewrite(JobLogState())
    return made


def test_a_state_survives_a_round_trip(log: JobLog) -> None:
    state = state_of(job(1), running(2), ended(3))
    log.rewrite(state)
    assert JobLog(log.path).load() == state


def test_events_appended_one_by_one_give_the_same_state(log: JobLog) -> None:
    state = state_of(job(1), running(2), ended(3))
    for record in state.records():
        log.append([record], sync=False)
    assert JobLog(log.path).load() == state


def test_an_incomplete_last_line_costs_only_that_line_wherever_it_was_cut(log: JobLog) -> None:
    log.append([job(1).submit_record()], sync=True)
    whole = log.path.read_bytes()
    log.append([job(2).submit_record()], sync=True)
    both = log.path.read_bytes()
    for length in range(len(whole), len(both) - 1):
        log.path.write_bytes(both[:length])
        state = JobLog(log.path).load()
        assert list(state.jobs) == [1]
        assert state.bad_lines == 0


def test_a_damaged_line_in_the_middle_costs_only_that_line_and_is_counted(log: JobLog) -> None:
    for identity in (1, 2, 3):
        log.append([job(identity).submit_record()], sync=False)
    lines = log.path.read_bytes().split(b"\n")
    log.path.write_bytes(b"\n".join(line[:-9] if b'"t2"' in line else line for line in lines))
    state = JobLog(log.path).load()
    assert list(state.jobs) == [1, 3]
    assert state.bad_lines == 1


def test_jobs_that_ended_over_a_day_ago_are_dropped_and_their_ids_not_reused(log: JobLog) -> None:
    now = 1e9
    state = state_of(job(1), running(2), ended(3, at=now - 5), ended(4, at=now - REMEMBER_SECONDS - 1))
    state.drop_old(now)
    assert list(state.jobs) == [1, 2, 3]
    log.rewrite(state)
    assert JobLog(log.path).load().next_id == 5


def test_a_forgotten_job_and_its_later_records_are_ignored(log: JobLog) -> None:
    log.append([ended(1).submit_record(), {"event": "forget", "ids": [1]}], sync=False)
    log.append([ended(1).end_record()], sync=False)
    state = JobLog(log.path).load()
    assert state.jobs == {}
    assert state.bad_lines == 0


def test_an_environment_that_no_job_uses_is_dropped() -> None:
    state = state_of(ended(1, at=0.0))
    state.drop_old(REMEMBER_SECONDS + 1)
    assert state.environments == {}


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_full_disk_leaves_the_log_unchanged(
    log: JobLog, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log.append([job(1).submit_record()], sync=True)
    before = log.path.read_bytes()
    real_write = os.write

    def full_after_ten_bytes(descriptor: int, data: memoryview) -> int:
        if len(data) <= 10:
            raise OSError(errno.ENOSPC, "full")
        return real_write(descriptor, data[:10])

    def fails(_descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(job_log_module.os, call, full_after_ten_bytes if call == "write" else fails)
        with pytest.raises(OSError, match=r"full|broken"):
            log.append([job(2).submit_record()], sync=True)
    assert log.path.read_bytes() == before
    log.append([job(3).submit_record()], sync=True)
    assert list(JobLog(log.path).load().jobs) == [1, 3]


def test_a_submission_is_synced_and_a_start_is_not(log: JobLog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(job_log_module.os, "fdatasync", synced.append)
    log.append([job(1).submit_record(), job(2).submit_record()], sync=True)
    assert len(synced) == 1
    log.append([running(1).start_record()], sync=False)
    assert len(synced) == 1


RAW = {"token": "t", "name": "", "order": "/o", "log": "/l", "cpus": 1, "gpus": 0, "time": 5, "grace": 1}


def test_a_submission_is_on_the_disk_before_the_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = JobTable(tmp_path / "jobs.jsonl", print)
    on_disk: list[int] = []
    monkeypatch.setattr(
        job_log_module.os,
        "fdatasync",
        lambda _: on_disk.append(len(JobLog(tmp_path / "jobs.jsonl").load().jobs)),
    )
    assert table.submit("group", [RAW, {**RAW, "token": "u"}], {}) == [{"job": "1"}, {"job": "2"}]
    assert on_disk == [2]


def test_a_submission_that_cannot_be_written_is_not_queued_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = JobTable(tmp_path / "jobs.jsonl", print)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(job_log_module.os, "fdatasync", full)
        with pytest.raises(OSError, match="full"):
            table.submit("group", [RAW], {"PATH": "/bin"})
    assert table.views("group") == []
    assert not table.queue
    assert len(table.submit("group", [RAW], {"PATH": "/bin"})) == 1
    (job,) = JobTable(tmp_path / "jobs.jsonl", print)
    assert job.request.token == "t"


def test_a_long_log_is_rewritten_without_a_change_of_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log_module, "REWRITE_BYTES", 1000)
    path = tmp_path / "jobs.jsonl"
    table = JobTable(path, print)
    table.submit("group", [RAW], {})
    for _ in range(50):
        table.try_record(running(1).ending_record())
    before = path.stat().st_size
    table.compact()
    assert path.stat().st_size < before / 2
    assert [one.request.token for one in JobTable(path, print)] == ["t"]
