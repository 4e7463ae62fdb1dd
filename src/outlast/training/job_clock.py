"""The end of the job on the clock of this process.

The hosts of a job may disagree about the time since the epoch, by a day if one of them is set wrongly. So the
node program passes the seconds that are left, and a reading of the monotonic clock of its host. A process on
the same host counts from that reading; one on another host counts from its own start.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Mapping

from outlast.training import env


def read_end(environment: Mapping[str, str], number: Callable[[str], float | None]) -> float | None:
    """Return the monotonic time by which this process must have ended; None if it has no deadline.

    `number` returns the value of a variable.
    """
    now = time.monotonic()
    left = number(env.TIME_LEFT)
    if left is None:
        # Only the deadline is known: it was set by hand.
        deadline = number(env.DEADLINE)
        return None if deadline is None else now + deadline - time.time()
    boot, _, reading = environment.get(env.CLOCK, "").partition(" ")
    if boot == boot_id():
        try:
            began = float(reading)
        except ValueError:
            began = now + 1  # as if it were in the future
        if began <= now:
            return began + left
    return now - process_age() + left


def boot_id() -> str | None:
    """Return what identifies this start of this host; None if it is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return None


def process_age() -> float:
    """Return the seconds since this process was started; 0 if they are unknown.

    The imports of a framework can take a minute, and may come before the import of outlast.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
