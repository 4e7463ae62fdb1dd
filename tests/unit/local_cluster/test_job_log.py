"""What a daemon remembers after it was killed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from outlast.local_cluster import job_log as book_module
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
def book(tmp_path: Path) -> JobLog:
    made = JobLog(tmp_path / "jobs.jsonl")
    made.rewrite(JobLogState())
    return made


def test_a_state_written_and_read_again_is_the_same(book: JobLog) -> None:
    state = state_of(job(1), running(2), ended(3))
    book.rewrite(state)
    assert JobLog(book.path).load() == state


def test_events_appended_one_by_one_give_the_same_state(book: JobLog) -> None:
    state = state_of(job(1), running(2), ended(3))
    for record in state.records():
        book.append([record], sync=False)
    assert JobLog(book.path).load() == state


def test_a_torn_last_line_costs_that_line_only_wherever_it_was_torn(book: JobLog) -> None:
    book.append([job(1).submit_record()], sync=True)
    whole = book.path.read_bytes()
    book.append([job(2).submit_record()], sync=True)
    both = book.path.read_bytes()
    for length in range(len(whole), len(both) - 1):
        book.path.write_bytes(both[:length])
        state = JobLog(book.path).load()
        assert list(state.jobs) == [1]
        assert state.bad_lines == 0


def test_a_damaged_line_in_the_middle_costs_that_line_only_and_is_counted(book: JobLog) -> None:
    for identity in (1, 2, 3):
        book.append([job(identity).submit_record()], sync=False)
    lines = book.path.read_bytes().split(b"\n")
    book.path.write_bytes(b"\n".join(line[:-9] if b'"t2"' in line else line for line in lines))
    state = JobLog(book.path).load()
    assert list(state.jobs) == [1, 3]
    assert state.bad_lines == 1


def test_ends_older_than_a_day_are_dropped_and_their_ids_are_not_given_again(book: JobLog) -> None:
    now = 1e9
    state = state_of(job(1), running(2), ended(3, at=now - 5), ended(4, at=now - REMEMBER_SECONDS - 1))
    state.drop_old(now)
    assert list(state.jobs) == [1, 2, 3]
    book.rewrite(state)
    assert JobLog(book.path).load().next_id == 5


def test_a_forgotten_job_and_what_was_written_of_it_later_are_gone(book: JobLog) -> None:
    book.append([ended(1).submit_record(), {"event": "forget", "ids": [1]}], sync=False)
    book.append([ended(1).end_record()], sync=False)
    state = JobLog(book.path).load()
    assert state.jobs == {}
    assert state.bad_lines == 0


def test_an_environment_that_no_job_has_is_dropped() -> None:
    state = state_of(ended(1, at=0.0))
    state.drop_old(REMEMBER_SECONDS + 1)
    assert state.environments == {}


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_full_disk_leaves_the_book_as_it_was(
    book: JobLog, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    book.append([job(1).submit_record()], sync=True)
    before = book.path.read_bytes()
    real_write = os.write

    def full_after_ten_bytes(descriptor: int, data: memoryview) -> int:
        if len(data) <= 10:
            raise OSError(errno.ENOSPC, "full")
        return real_write(descriptor, data[:10])

    def fails(_descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(book_module.os, call, full_after_ten_bytes if call == "write" else fails)
        with pytest.raises(OSError, match=r"full|broken"):
            book.append([job(2).submit_record()], sync=True)
    assert book.path.read_bytes() == before
    book.append([job(3).submit_record()], sync=True)
    assert list(JobLog(book.path).load().jobs) == [1, 3]


def test_a_submission_is_synced_and_a_start_is_not(book: JobLog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(book_module.os, "fdatasync", synced.append)
    book.append([job(1).submit_record(), job(2).submit_record()], sync=True)
    assert len(synced) == 1
    book.append([running(1).start_record()], sync=False)
    assert len(synced) == 1


RAW = {"token": "t", "name": "", "order": "/o", "log": "/l", "cpus": 1, "gpus": 0, "time": 5, "grace": 1}


def test_a_submission_is_on_the_disk_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster = JobTable(tmp_path / "jobs.jsonl", print)
    on_disk: list[int] = []
    monkeypatch.setattr(
        book_module.os,
        "fdatasync",
        lambda _: on_disk.append(len(JobLog(tmp_path / "jobs.jsonl").load().jobs)),
    )
    assert roster.submit("group", [RAW, {**RAW, "token": "u"}], {}) == [{"job": "1"}, {"job": "2"}]
    assert on_disk == [2]


def test_a_submission_that_the_disk_refuses_is_not_there_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster = JobTable(tmp_path / "jobs.jsonl", print)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(book_module.os, "fdatasync", full)
        with pytest.raises(OSError, match="full"):
            roster.submit("group", [RAW], {"PATH": "/bin"})
    assert roster.views("group") == []
    assert not roster.waiting
    assert len(roster.submit("group", [RAW], {"PATH": "/bin"})) == 1
    (job,) = JobTable(tmp_path / "jobs.jsonl", print)
    assert job.request.token == "t"


def test_a_book_grown_long_is_rewritten_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_module, "REWRITE_BYTES", 1000)
    path = tmp_path / "jobs.jsonl"
    roster = JobTable(path, print)
    roster.submit("group", [RAW], {})
    for _ in range(50):
        roster.note(running(1).ending_record())
    before = path.stat().st_size
    roster.tidy()
    assert path.stat().st_size < before / 2
    assert [one.request.token for one in JobTable(path, print)] == ["t"]
