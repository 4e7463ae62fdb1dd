"""How much time a job has, and when it must stop: the only place that knows the time margins.

The end of a job's wall time is kept free for validation, delivery and cleanup; the training must have ended
before it. The stop signal comes earlier still, so that the training has time to save. `outlast.training`
must not import this package and repeats the share of the stop margin; a unit test compares the two.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Mapping

#: The part of a job's time that the grace may use: a short job must still have time to train.
_STOP_SHARE = 0.25
#: Seconds for validation, delivery and cleanup; of a short job only this share.
_RESERVE = 30.0
_RESERVE_SHARE = 0.1
#: Cleanup ends this many seconds before the limit, or this share of the reserve if that is less.
_SAFETY = 1.0
_SAFETY_SHARE = 0.3
#: Slurm: the end of the job, in seconds since the epoch.
_SLURM_END = "SLURM_JOB_END_TIME"
#: HTCondor: a file that describes the slot.
_MACHINE_AD = "_CONDOR_MACHINE_AD"
#: When the pilot job that holds the slot begins to evict its jobs, in seconds since the epoch.
_RETIRES = re.compile(r"^GLIDEIN_ToRetire\s*=\s*(\d+)\s*$", re.MULTILINE)
_MAX_AD_BYTES = 2**20
#: An end that is nearer than this, or past, is ignored: the clock may be wrong, and nothing has begun yet.
_MIN_SECONDS = 60.0


@dataclass(frozen=True)
class TimeLimits:
    """The times of an attempt on the monotonic clock, unless stated otherwise."""

    #: When the scheduler kills the job.
    hard_end: float
    #: When the training is killed.
    deadline: float
    #: When the training gets the stop signal.
    stop_at: float
    #: Seconds from the stop signal to the deadline.
    grace: float
    #: When the node program gives up its own work, such as delivery.
    last_moment: float
    #: The deadline in seconds since the epoch, computed once; the training process gets this value.
    deadline_epoch: float


def stop_margin(time_limit: float, grace: float) -> float:
    """Return the seconds from the stop signal to the deadline: the grace, at most a quarter of the limit."""
    return min(grace, _STOP_SHARE * time_limit)


def handover_reserve(time_limit: float) -> float:
    """Return the seconds after the deadline for validation, delivery and cleanup."""
    return min(_RESERVE, _RESERVE_SHARE * time_limit)


def limits_for(time_limit: float, grace: float, began: float, began_epoch: float) -> TimeLimits:
    """Return the limits of a job that began at `began` (monotonic) and has `time_limit` seconds."""
    reserve = handover_reserve(time_limit)
    margin = stop_margin(time_limit, grace)
    usable = time_limit - reserve
    return TimeLimits(
        hard_end=began + time_limit,
        deadline=began + usable,
        stop_at=began + usable - margin,
        grace=margin,
        last_moment=began + time_limit - min(_SAFETY, _SAFETY_SHARE * reserve),
        deadline_epoch=began_epoch + usable,
    )


def seconds_left(requested: float, environment: Mapping[str, str]) -> float:
    """Return the requested seconds, or fewer if Slurm or a pilot job has announced an earlier end."""
    ends = [_parse_epoch(environment.get(_SLURM_END, "")), _read_retirement(environment.get(_MACHINE_AD, ""))]
    left = [end - time.time() for end in ends if end is not None]
    return min([requested, *(seconds for seconds in left if seconds >= _MIN_SECONDS)])


def _parse_epoch(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _read_retirement(path: str) -> float | None:
    """Return when the pilot job retires, from the slot's description; None if that is unknown."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = _RETIRES.search(file.read(_MAX_AD_BYTES))
    except OSError:
        return None
    return float(found.group(1)) if found else None
