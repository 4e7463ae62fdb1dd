"""`explain` shows every job and every start of an attempt."""

from __future__ import annotations

import time
from typing import Any

import pytest

from outlast.cli import attempt_times
from outlast.cli.attempt_times import show_jobs, show_times
from outlast.domain.accounts import AttemptAccount, read_account
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry

BEGAN = 1_800_000_000.0 // 86400 * 86400


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    def show_time(at: float) -> str:
        return time.strftime("%H:%M:%S", time.gmtime(at))

    monkeypatch.setattr(attempt_times, "show_time", show_time)


def an_attempt(**facts: Any) -> Attempt:
    base: dict[str, Any] = {"state": AttemptState.ENDED, "intended": BEGAN, "queued": BEGAN, "job": "17"}
    return Attempt("r", 1, "a", **{**base, "host": "n1", **facts})


def started(at: float, restarts: int = 0, job: str = "17") -> JournalEntry:
    data = {"job": job, "host": "n1", "started": BEGAN + at, "restarts": restarts}
    return JournalEntry(BEGAN + at, "r", EntryKind.STARTED, "a", data)


QUEUED = JournalEntry(BEGAN, "r", EntryKind.QUEUED, "a", {"job": "17"})


def test_one_start_is_shown_with_the_time_in_the_queue() -> None:
    attempt = an_attempt(started=BEGAN + 60, ended=BEGAN + 3660, account=AttemptAccount(slot=3600.0))
    assert show_times(attempt, [QUEUED, started(60)]) == "00:01:00 to 01:01:00, after 1 min in the queue"


def test_a_restarted_job_is_shown_with_its_first_start_and_the_time_between_starts() -> None:
    # Its end is recorded with the last start.
    attempt = an_attempt(
        started=BEGAN + 1500, ended=BEGAN + 3660, restarts=1, account=AttemptAccount(slot=3000.0)
    )
    shown = show_times(attempt, [QUEUED, started(60), started(1500, restarts=1)])
    assert shown == "00:01:00 to 01:01:00 in 2 starts, after 1 min in the queue and 10 min between starts"


def test_an_unsupervised_chain_is_shown_with_the_total_time_in_the_queue() -> None:
    earlier = [{"outcome": "continue"}, {"outcome": "continue"}]
    account = read_account({"slot": 3000.0, "earlier": earlier})
    attempt = an_attempt(started=BEGAN + 2700, ended=BEGAN + 3600, jobs=5, account=account)
    shown = show_times(attempt, [QUEUED])
    assert shown == "3 starts, the last from 00:45:00 to 01:00:00, after 10 min in the queue in total"


def test_a_restarted_job_that_is_running_is_shown_with_its_starts() -> None:
    attempt = an_attempt(state=AttemptState.RUNNING, started=BEGAN + 60, restarts=2)
    assert show_times(attempt, [QUEUED, started(60)]) == "00:01:00 in 3 starts, after 1 min in the queue"
    unseen = an_attempt(state=AttemptState.RUNNING, started=BEGAN + 600, restarts=2)
    assert show_times(unseen, [QUEUED, started(600, restarts=2)]) == "3 starts, the last at 00:10:00"


def test_all_jobs_of_a_chain_are_shown_also_those_that_the_scheduler_no_longer_lists() -> None:
    sent = JournalEntry(BEGAN, "r", EntryKind.QUEUED, "a", {"job": "17,18,19"})
    attempt = an_attempt(job="18", jobs=3)
    assert show_jobs(attempt, [sent, started(60, job="18")]) == "jobs 17, 18, 19; last on n1"
    assert show_jobs(an_attempt(), [QUEUED]) == "job 17 on n1"
