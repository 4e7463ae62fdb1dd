"""How long this job really has: schedulers and pilots may grant less than was asked for, and some say so."""

from __future__ import annotations

import re
import time
from typing import Mapping

#: Slurm: when the job will be ended, in seconds since the epoch.
_SLURM_END = "SLURM_JOB_END_TIME"
#: HTCondor: a file that describes the slot.
_MACHINE_AD = "_CONDOR_MACHINE_AD"
#: When the pilot that holds the slot will begin to send its jobs away.
_RETIRES = re.compile(r"^GLIDEIN_ToRetire\s*=\s*(\d+)\s*$", re.MULTILINE)
_MOST_BYTES = 2**20
#: A clock that is this wrong, or a slot this short, is no reason to stop before anything has begun.
_AT_LEAST = 60.0


def seconds_left(asked: float, environment: Mapping[str, str]) -> float:
    """What was asked for, or less where the scheduler has said so."""
    ends = [_epoch(environment.get(_SLURM_END, "")), _retirement(environment.get(_MACHINE_AD, ""))]
    left = [end - time.time() for end in ends if end is not None]
    return min([asked, *(seconds for seconds in left if seconds >= _AT_LEAST)])


def _epoch(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _retirement(path: str) -> float | None:
    if not path:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = _RETIRES.search(file.read(_MOST_BYTES))
    except OSError:
        return None  # nobody told
    return float(found.group(1)) if found else None
