"""HTCondor's job states, removal reasons and submit responses: their meaning for Outlast, and sentences.

Holds have a module of their own, `holds`.
"""

from __future__ import annotations

import math
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.domain.model import Outcome
from outlast.schedulers.base import Removal, Submission, SubmitStatus

#: `JobStatus` in an ad.
IDLE, RUNNING, REMOVED, COMPLETED, HELD, TRANSFERRING_OUTPUT, SUSPENDED = range(1, 8)

#: Attribute of the job, attribute of a slot, unit to show, and how many of the attribute's units it is.
_RESOURCES = (
    ("RequestCpus", "TotalSlotCpus", "cpus", 1),
    ("RequestGPUs", "TotalSlotGPUs", "GPUs", 1),
    ("RequestMemory", "TotalSlotMemory", "MB of memory", 1),
    ("RequestDisk", "TotalSlotDisk", "MB of disk", 1024),
)


#: Who removed a job, in HTCondor's reason.
_REMOVED_BY = re.compile(r"\(by user ([^@)\s]+)")


def explain_removal(reason: str) -> tuple[Outcome, Removal, str]:
    """Return outcome, removal and sentence for a job that was removed from the queue.

    A removal by a rule of access point or submit description is an eviction: like a limit of a cluster, it
    ends the job, not the run. Any other removal was by hand.
    """
    sentence = "removed from the queue (%s)" % reason if reason else "removed from the queue"
    if "PERIODIC_REMOVE" in reason.upper() or "PeriodicRemove" in reason:
        return Outcome.EVICTED, Removal.NO, sentence
    by = _REMOVED_BY.search(reason)
    own = _own_names()
    other = by is not None and bool(own) and by[1] not in own
    return Outcome.CANCELLED, Removal.OTHER if other else Removal.YES, sentence


def _own_names() -> tuple[str, ...]:
    """Return the names that do not stand for another person; empty if this user's name is unknown.

    HTCondor's daemons remove jobs as `condor`; an administrator does as `root` or under a name of their own.
    HTCondor takes no jobs of root: those that root submits belong to `nobody`.
    """
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ()
    return (name, "condor", "nobody") if os.getuid() == 0 else (name, "condor")


def explain_idle(ad: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> str:
    """Return why an idle job is not started. `slots` are the slots of the pool; empty if not known."""
    for requested, offered, words, unit in _RESOURCES:
        if not slots:
            break
        amount = _to_number(ad.get(requested))
        most = max(_to_number(slot.get(offered)) for slot in slots)
        if amount > most:
            return "requests %d %s; the largest slot of this pool has %d now" % (
                -(-amount // unit),
                words,
                most // unit,
            )
    rejected = str(ad.get("LastRejMatchReason", "")).strip()
    if "LastRejMatchTime" in ad:
        return "pending; no free slot has what it requests%s" % (" (%s)" % rejected if rejected else "")
    return "pending; not yet considered by HTCondor"


def _to_number(value: Any) -> float:
    """Return the value of an attribute; 0 if it is not a finite number."""
    try:
        number = float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def parse_submit_response(token: str, response: Mapping[str, Any]) -> Submission:
    """Return the result for one token of the worker's `submit`."""
    if token in response["jobs"]:
        return Submission(SubmitStatus.ACCEPTED, job=response["jobs"][token])
    if token in response["refused"]:
        return Submission(SubmitStatus.REJECTED, reason=response["refused"][token])
    reason = response["unsure"].get(token, "HTCondor reported no reason")
    return Submission(SubmitStatus.UNKNOWN, reason=reason)
