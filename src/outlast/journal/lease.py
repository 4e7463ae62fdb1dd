"""One controller at a time: who holds the journal, and when that may be doubted.

On the holder's own host its process is looked up, so that a dead one is taken over at once. From another
host only its heartbeat tells. Either way the journal's epoch makes sure that a holder which was wrongly
given up can write nothing more.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from outlast.errors import JournalHeld
from outlast.journal.journal import Journal
from outlast.local_cluster.processes import boot_id, is_alive, start_ticks

#: The commands that hold an experiment until all its runs have ended.
SUPERVISORS = ("up", "run")
#: How often a holder says that it lives, and how long another host believes a silent one, in seconds.
BEAT = 10.0
SILENCE = 120.0


class Lease:
    """Held from `acquire` to `release`."""

    def __init__(self, journal: Journal, purpose: str) -> None:
        self._journal = journal
        self._holder: dict[str, Any] = {}
        self._purpose = purpose
        self._beaten = 0.0

    def acquire(self) -> None:
        """Raises JournalHeld, naming the holder, if there is a living one."""
        for _ in range(3):
            epoch, holder = self._journal.lease()
            if _lives(holder):
                raise JournalHeld(describe(holder), supervises=holder["purpose"] in SUPERVISORS)
            now = time.time()
            self._holder = {**_myself(), "since": now, "beat": now, "purpose": self._purpose}
            if self._journal.take_lease(epoch, self._holder):
                self._beaten = time.monotonic()
                return
        raise JournalHeld("several controllers want this experiment at once; try again")

    def beat(self) -> None:
        """To be called often; writes only now and then."""
        if time.monotonic() - self._beaten >= BEAT:
            self._holder["beat"] = time.time()
            self._journal.renew_lease(self._holder)
            self._beaten = time.monotonic()

    def release(self) -> None:
        self._journal.renew_lease({})


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": boot_id(), "pid": pid, "born": start_ticks(pid)}


def living_holder(journal: Journal) -> Mapping[str, Any]:
    """Who is in charge of the experiment, as far as can be told from here; empty: nobody."""
    _, holder = journal.lease()
    return holder if _lives(holder) else {}


def _lives(holder: Mapping[str, Any]) -> bool:
    if not holder:
        return False
    if holder["host"] == socket.gethostname() and holder["born"] is not None:
        # Another boot id: the machine was started anew since.
        return holder["boot"] == boot_id() and is_alive(int(holder["pid"]), int(holder["born"]))
    return abs(time.time() - float(holder["beat"])) < SILENCE


def describe(holder: Mapping[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(holder["since"])))
    return "this experiment is supervised by `outlast %s` (pid %s) on %s since %s" % (
        holder["purpose"],
        holder["pid"],
        holder["host"],
        since,
    )
