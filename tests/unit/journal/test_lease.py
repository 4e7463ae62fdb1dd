"""One controller holds the lease at a time; a dead one is taken over, a living one is named."""

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
from outlast.journal.lease import RENEW_INTERVAL, STALE_AFTER, Lease
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
    """Take the lease as another holder, and return that holder."""
    now = time.time()
    holder = {**lease_module._this_process(), "since": now, "beat": now, "purpose": "up", **changes}
    other = Journal(journal.path)
    epoch, _ = other.lease()
    assert other.acquire_lease(epoch, holder)
    other.close()
    return holder


def test_a_lease_permits_writing_and_is_free_after_its_release(journal: Journal) -> None:
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
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie counts as dead
    Lease(journal, "up").acquire()
    journal.append([ADDED])


def test_a_pid_that_another_process_has_now_is_no_holder(journal: Journal) -> None:
    hold(journal, born="12345")
    Lease(journal, "up").acquire()


def test_a_holder_from_before_a_reboot_is_dead(journal: Journal) -> None:
    hold(journal, boot="another boot")
    Lease(journal, "up").acquire()


def test_a_holder_on_another_host_keeps_the_lease_until_its_heartbeat_is_stale(journal: Journal) -> None:
    hold(journal, host="login2", beat=time.time() - STALE_AFTER + 30)
    with pytest.raises(JournalHeld, match="login2"):
        Lease(journal, "up").acquire()
    hold(journal, host="login2", beat=time.time() - STALE_AFTER - 1)
    Lease(journal, "up").acquire()


def test_a_holder_whose_clock_is_far_ahead_does_not_keep_the_lease_for_ever(journal: Journal) -> None:
    hold(journal, host="login2", beat=time.time() + 10 * STALE_AFTER)
    Lease(journal, "up").acquire()


def test_a_holder_that_was_wrongly_taken_over_finds_out_at_its_next_renewal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(journal, "up")
    lease.acquire()
    other = Journal(journal.path)
    epoch, _ = other.lease()
    assert other.acquire_lease(epoch, {"host": "login2"})
    late = time.monotonic() + RENEW_INTERVAL
    monkeypatch.setattr(time, "monotonic", lambda: late)
    with pytest.raises(JournalHeld, match="taken over"):
        lease.renew()
    other.close()


def test_a_lease_is_renewed_at_most_once_per_interval(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(journal, "up")
    lease.acquire()
    renewals: list[object] = []
    monkeypatch.setattr(journal, "renew_lease", renewals.append)
    for _ in range(100):
        lease.renew()
    assert not renewals
    late = time.monotonic() + RENEW_INTERVAL
    monkeypatch.setattr(time, "monotonic", lambda: late)
    for _ in range(100):
        lease.renew()
    assert len(renewals) == 1


def test_two_controllers_that_find_the_lease_free_do_not_both_get_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one acquires it between our read and our write, and is alive when we read it again."""
    read = journal.lease
    reads: list[object] = []

    def overtaken() -> Any:
        found = read()
        if not reads:
            reads.append(hold(journal, host="login2"))
        return found

    monkeypatch.setattr(journal, "lease", overtaken)
    with pytest.raises(JournalHeld, match="login2"):
        Lease(journal, "up").acquire()
    with pytest.raises(JournalHeld):
        journal.append([ADDED])
