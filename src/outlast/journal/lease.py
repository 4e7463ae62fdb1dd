"""The lease on a journal: one controller writes at a time, and a dead one is taken over.

On the holder's own host its process is checked, so that a dead holder is taken over at once. On another host
only its heartbeat can be checked. Either way the epoch in the journal keeps a holder that was wrongly taken
for dead from writing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from outlast.errors import JournalHeld
from outlast.journal.journal import Journal

#: The commands that hold the lease until all runs have ended.
SUPERVISORS = ("up", "run")
#: Seconds between heartbeats, and seconds without one after which another host takes the lease over.
RENEW_INTERVAL = 10.0
STALE_AFTER = 120.0


class Lease:
    """The right to write to a journal, held from `acquire` to `release`."""

    def __init__(self, journal: Journal, purpose: str) -> None:
        self._journal = journal
        self._holder: dict[str, Any] = {}
        self._purpose = purpose
        self._renewed = 0.0

    def acquire(self) -> None:
        """Acquire the lease. Raise JournalHeld, which names the holder, if another process holds it."""
        for _ in range(3):
            epoch, holder = self._journal.lease()
            if _is_alive(holder):
                raise JournalHeld(describe(holder), supervises=holder["purpose"] in SUPERVISORS)
            now = time.time()
            self._holder = {**_this_process(), "since": now, "beat": now, "purpose": self._purpose}
            if self._journal.acquire_lease(epoch, self._holder):
                self._renewed = time.monotonic()
                return
        raise JournalHeld("several controllers tried to start on this experiment at once; try again")

    def renew(self) -> None:
        """Store a heartbeat, at most every RENEW_INTERVAL seconds. Raise JournalHeld if it was taken over."""
        if time.monotonic() - self._renewed >= RENEW_INTERVAL:
            self.renew_now()

    def renew_now(self) -> None:
        """Store a heartbeat. Raise JournalHeld if it was taken over."""
        self._holder["beat"] = time.time()
        self._journal.renew_lease(self._holder)
        self._renewed = time.monotonic()

    def release(self) -> None:
        """Give the lease up. Raise JournalHeld if it was taken over."""
        self._journal.renew_lease({})


def _this_process() -> dict[str, Any]:
    from outlast.local_cluster.processes import boot_id, start_ticks

    pid = os.getpid()
    return {"host": os.uname().nodename, "boot": boot_id(), "pid": pid, "born": start_ticks(pid)}


def living_holder(journal: Journal) -> Mapping[str, Any]:
    """Return the holder of the lease; empty if there is none, or it is dead."""
    _, holder = journal.lease()
    return holder if _is_alive(holder) else {}


def _is_alive(holder: Mapping[str, Any]) -> bool:
    if not holder:
        return False
    if holder["host"] == os.uname().nodename and holder["born"] is not None:
        from outlast.local_cluster.processes import boot_id, is_alive

        # With another boot id, the host has been restarted since.
        return holder["boot"] == boot_id() and is_alive(int(holder["pid"]), int(holder["born"]))
    return abs(time.time() - float(holder["beat"])) < STALE_AFTER


def describe(holder: Mapping[str, Any]) -> str:
    """Return a sentence that names the holder: command, process, host and since when."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(holder["since"])))
    return "this experiment is supervised by `outlast %s` (pid %s) on %s since %s" % (
        holder["purpose"],
        holder["pid"],
        holder["host"],
        since,
    )
