"""`explain` tells of every job and every start of an attempt."""

from __future__ import annotations

import time
from typing import Any

import pytest

from outlast.cli import attempt_times
from outlast.cli.attempt_times import when, where
from outlast.domain.accounts import AttemptAccount, read_account
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry

BEGAN = 1_800_000_000.0 // 86400 * 86400


@pytest.fixture(autouse=True)
def _at_greenwich(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(at: float) -> str:
        return time.strftime("%H:%M:%S", time.gmtime(at))

    monkeypatch.setattr(attempt_times, "clock", clock)


def an_attempt(**facts: Any) -> Attempt:
    base: dict[str, Any] = {"state": AttemptState.ENDED, "intended": BEGAN, "queued": BEGAN, "job": "17"}
    return Attempt("r", 1, "a", **{**base, "host": "n1", **facts})


def started(at: float, restarts: int = 0, job: str = "17") -> JournalEntry:
    data = {"job": job, "host": "n1", "started": BEGAN + at, "restarts": restarts}
    return JournalEntry(BEGAN + at, "r", EntryKind.STARTED, "a", data)


QUEUED = JournalEntry(BEGAN, "r", EntryKind.QUEUED, "a", {"job": "17"})


def test_one_start_tells_how_long_it_was_in_the_queue() -> None:
    attempt = an_attempt(started=BEGAN + 60, ended=BEGAN + 3660, account=AttemptAccount(slot=3600.0))
    assert when(attempt, [QUEUED, started(60)]) == "00:01:00 to 01:01:00, after 1 min in the queue"


def test_a_job_that_was_started_again_tells_its_first_start_and_the_time_between() -> None:
    # Its end is recorded with the last start.
    attempt = an_attempt(
        started=BEGAN + 1500, ended=BEGAN + 3660, restarts=1, account=AttemptAccount(slot=3000.0)
    )
    told = when(attempt, [QUEUED, started(60), started(1500, restarts=1)])
    assert told == "00:01:00 to 01:01:00 in 2 starts, after 1 min in the queue and 10 min between starts"


def test_a_chain_that_nobody_watched_tells_the_time_in_the_queue_in_all() -> None:
    earlier = [{"outcome": "continue"}, {"outcome": "continue"}]
    account = read_account({"slot": 3000.0, "earlier": earlier})
    attempt = an_attempt(started=BEGAN + 2700, ended=BEGAN + 3600, jobs=5, account=account)
    told = when(attempt, [QUEUED])
    assert told == "3 starts, the last from 00:45:00 to 01:00:00, after 10 min in the queue in all"


def test_what_runs_again_tells_when_it_began_and_how_often() -> None:
    attempt = an_attempt(state=AttemptState.RUNNING, started=BEGAN + 60, restarts=2)
    assert when(attempt, [QUEUED, started(60)]) == "00:01:00 in 3 starts, after 1 min in the queue"
    unseen = an_attempt(state=AttemptState.RUNNING, started=BEGAN + 600, restarts=2)
    assert when(unseen, [QUEUED, started(600, restarts=2)]) == "3 starts, the last at 00:10:00"


def test_all_jobs_of_a_chain_are_named_also_those_that_the_scheduler_no_longer_lists() -> None:
    sent = JournalEntry(BEGAN, "r", EntryKind.QUEUED, "a", {"job": "17,18,19"})
    attempt = an_attempt(job="18", jobs=3)
    assert where(attempt, [sent, started(60, job="18")]) == "jobs 17, 18, 19; last on n1"
    assert where(an_attempt(), [QUEUED]) == "job 17 on n1"
