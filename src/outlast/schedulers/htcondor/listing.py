"""What a job's ad in the queue or in the history says where the event log does not; and why a job waits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlast.schedulers.base import JobPhase
from outlast.schedulers.htcondor.job_history import MEGABYTE, JobHistory, held, removed
from outlast.schedulers.unreadable_output import Odd

Ad = Mapping[str, Any]
_IDLE, _RUNNING, _REMOVED, _COMPLETED, _HELD, _TRANSFERRING, _SUSPENDED = range(1, 8)

#: What a job asks for, what a slot calls it, and how people say it.
_WISHES = (
    ("RequestCpus", "TotalSlotCpus", "cpus", 1),
    ("RequestGPUs", "TotalSlotGPUs", "GPUs", 1),
    ("RequestMemory", "TotalSlotMemory", "MB of memory", 1),
    ("RequestDisk", "TotalSlotDisk", "MB of disk", 1024),
)


def by_token(ads: Iterable[Any], odd: Odd) -> dict[str, Ad]:
    """Those that can be read. Whoever owns a job may write anything into its ad."""
    found: dict[str, Ad] = {}
    for ad in ads:
        try:
            _moment(ad, "EnteredCurrentStatus")
            found[story_of(ad).token] = ad
        except (KeyError, TypeError, ValueError, OverflowError):
            odd("%s" % ad)
    return found


def story_of(ad: Ad) -> JobHistory:
    """As much of the story as the ad holds."""
    story = JobHistory(
        token=str(ad["OutlastToken"]),
        job="%d.%d" % (ad["ClusterId"], ad["ProcId"]),
        host=_host(ad),
        starts=int(ad.get("NumShadowStarts", 0)),
        started=_moment(ad, "JobCurrentStartExecutingDate"),
        spent=float(ad.get("RemoteWallClockTime", 0.0)),
        memory=int(ad["MemoryUsage"]) * MEGABYTE if ad.get("MemoryUsage") else None,
    )
    status = ad["JobStatus"]
    if status == _HELD:
        codes = int(ad.get("HoldReasonCode", 0)), int(ad.get("HoldReasonSubCode", 0))
        return held(story, *codes, str(ad.get("HoldReason", "")))
    if status == _REMOVED:
        ended = _moment(ad, "EnteredCurrentStatus")
        return removed(replace(story, ended=ended), str(ad.get("RemoveReason", "")))
    if status == _COMPLETED:
        ended = _moment(ad, "CompletionDate") or _moment(ad, "EnteredCurrentStatus")
        story = replace(story, phase=JobPhase.ENDED, ended=ended)
        if ad.get("ExitBySignal"):
            return replace(story, signal=int(ad["ExitSignal"]) if "ExitSignal" in ad else None)
        return replace(story, exit_code=int(ad["ExitCode"]) if "ExitCode" in ad else None)
    if status in (_RUNNING, _TRANSFERRING, _SUSPENDED) and story.started is not None:
        return replace(story, phase=JobPhase.RUNNING)
    return story


def _moment(ad: Ad, name: str) -> float | None:
    return float(ad[name]) if name in ad else None


def _host(ad: Ad) -> str:
    for name in ("MachineAttrGLIDEIN_ResourceName0", "MachineAttrMachine0"):
        if ad.get(name):
            return str(ad[name])
    return str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "").rpartition("@")[2]


def why_idle(ad: Ad, offer: Sequence[Ad]) -> str:
    """Why a waiting job is not started, as far as can be seen. `offer`: the pool's slots, if known."""
    for wish, slot, words, unit in _WISHES:
        asked = _number(ad.get(wish))
        if not offer:
            continue
        most = max((_number(one.get(slot)) for one in offer), default=0.0)
        if asked > most:
            return "asks for %d %s, and the most that a slot of this pool has now is %d" % (
                -(-asked // unit),
                words,
                most // unit,
            )
    rejected = str(ad.get("LastRejMatchReason", "")).strip()
    if "LastRejMatchTime" in ad:
        return "waits: no free slot fits what it asks for%s" % (" (%s)" % rejected if rejected else "")
    return "waits for its turn"


def _number(value: Any) -> float:
    """0 for what is no number, or none that a machine can have."""
    try:
        number = float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0
