"""One controller at a time; a dead one is taken over, a living one is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.model import EntryKind, JournalEntry
from outlast.errors import JournalHeld
from outlast.journal import lease as lease_module
from outlast.journal.journal import Journal
from outlast.journal.lease import BEAT, SILENCE, Lease
from outlast.local_cluster.processes import start_ticks

ADDED = JournalEntry(1.0, "a", EntryKind.ADDED, None, {"position": 0, "spec": 1})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite", create=True)
    yield journal
    journal.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.wait(30.0)
    assert started.stdin is not None
    started.stdin.close()


def hold(journal: Journal, **changes: Any) -> dict[str, Any]:
    """As if somebody else had the lease."""
    now = time.time()
    holder = {**lease_module._myself(), "since": now, "beat": now, "purpose": "up", **changes}
    other = Journal(journal.path)
    epoch, _ = other.lease()
    assert other.take_lease(epoch, holder)
    other.close()
    return holder


def test_a_lease_lets_write_and_is_free_after_its_release(journal: Journal) -> None:
    lease = Lease(journal, "up")
    lease.acquire()
    journal.append([ADDED])
    lease.release()
    assert journal.lease()[1] == {}
    Lease(Journal(journal.path), "tick").acquire()


def test_a_living_holder_is_named_with_purpose_host_pid_and_time(
    journal: Journal, process: subprocess.Popen[bytes]
) -> None:
    hold(journal, pid=process.pid, born=start_ticks(process.pid), since=1e9)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9))
    with pytest.raises(JournalHeld) as caught:
        Lease(journal, "tick").acquire()
    for word in ("outlast up", str(process.pid), socket.gethostname(), since):
        assert word in str(caught.value)


def test_a_killed_holder_is_taken_over_at_once_and_cannot_write(
    journal: Journal, process: subprocess.Popen[bytes]
) -> None:
    hold(journal, pid=process.pid, born=start_ticks(process.pid))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie is dead, reaped or not
    Lease(journal, "up").acquire()
    journal.append([ADDED])


def test_a_pid_that_belongs_to_somebody_else_by_now_is_no_holder(journal: Journal) -> None:
    hold(journal, born="12345")
    Lease(journal, "up").acquire()


def test_a_holder_from_before_the_machine_was_started_anew_is_dead(journal: Journal) -> None:
    hold(journal, boot="another boot")
    Lease(journal, "up").acquire()


def test_a_holder_on_another_host_is_believed_while_its_heart_beats(journal: Journal) -> None:
    hold(journal, host="login2", beat=time.time() - SILENCE + 30)
    with pytest.raises(JournalHeld, match="login2"):
        Lease(journal, "up").acquire()
    hold(journal, host="login2", beat=time.time() - SILENCE - 1)
    Lease(journal, "up").acquire()


def test_a_holder_whose_clock_is_far_ahead_does_not_hold_for_ever(journal: Journal) -> None:
    hold(journal, host="login2", beat=time.time() + 10 * SILENCE)
    Lease(journal, "up").acquire()


def test_a_holder_that_was_wrongly_given_up_finds_out_at_its_next_beat(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(journal, "up")
    lease.acquire()
    other = Journal(journal.path)
    epoch, _ = other.lease()
    assert other.take_lease(epoch, {"host": "login2"})
    late = time.monotonic() + BEAT
    monkeypatch.setattr(time, "monotonic", lambda: late)
    with pytest.raises(JournalHeld, match="taken over"):
        lease.beat()
    other.close()


def test_a_heart_beats_only_now_and_then(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(journal, "up")
    lease.acquire()
    renewals: list[object] = []
    monkeypatch.setattr(journal, "renew_lease", renewals.append)
    for _ in range(100):
        lease.beat()
    assert not renewals
    late = time.monotonic() + BEAT
    monkeypatch.setattr(time, "monotonic", lambda: late)
    for _ in range(100):
        lease.beat()
    assert len(renewals) == 1


def test_two_who_find_it_free_at_once_do_not_both_get_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one takes it between our look and our grasp, and is alive at our second look."""
    look = journal.lease
    looks: list[object] = []

    def overtaken() -> Any:
        found = look()
        if not looks:
            looks.append(hold(journal, host="login2"))
        return found

    monkeypatch.setattr(journal, "lease", overtaken)
    with pytest.raises(JournalHeld, match="login2"):
        Lease(journal, "up").acquire()
    with pytest.raises(JournalHeld):
        journal.append([ADDED])
