"""Parse a job's ad in the queue or in the history; used where the event log is missing or incomplete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from outlast.schedulers.base import JobPhase
from outlast.schedulers.htcondor import states
from outlast.schedulers.htcondor.job_history import MEGABYTE, JobHistory, mark_held, mark_removed
from outlast.schedulers.unreadable_output import ReportUnreadable

Ad = Mapping[str, Any]


def parse_ads(ads: Iterable[Any], report_unreadable: ReportUnreadable) -> dict[str, Ad]:
    """Return the readable ads by token. The owner of a job may write anything into its ad."""
    readable: dict[str, Ad] = {}
    for ad in ads:
        try:
            _time(ad, "EnteredCurrentStatus")
            readable[history_from_ad(ad).token] = ad
        except (KeyError, TypeError, ValueError, OverflowError):
            report_unreadable("%s" % ad)
    return readable


def history_from_ad(ad: Ad) -> JobHistory:
    """Return as much of a job's history as its ad contains.

    Raises KeyError, TypeError, ValueError or OverflowError for an ad that cannot be read.
    """
    history = JobHistory(
        token=str(ad["OutlastToken"]),
        job="%d.%d" % (ad["ClusterId"], ad["ProcId"]),
        host=_host(ad),
        starts=int(ad.get("NumShadowStarts", 0)),
        started=_time(ad, "JobCurrentStartExecutingDate"),
        slot_seconds=float(ad.get("RemoteWallClockTime", 0.0)),
        memory=int(ad["MemoryUsage"]) * MEGABYTE if ad.get("MemoryUsage") else None,
    )
    status = ad["JobStatus"]
    if status == states.HELD:
        codes = int(ad.get("HoldReasonCode", 0)), int(ad.get("HoldReasonSubCode", 0))
        return mark_held(history, *codes, str(ad.get("HoldReason", "")))
    if status == states.REMOVED:
        ended = _time(ad, "EnteredCurrentStatus")
        return mark_removed(replace(history, ended=ended), str(ad.get("RemoveReason", "")))
    if status == states.COMPLETED:
        ended = _time(ad, "CompletionDate") or _time(ad, "EnteredCurrentStatus")
        history = replace(history, phase=JobPhase.ENDED, ended=ended)
        if ad.get("ExitBySignal"):
            return replace(history, signal=int(ad["ExitSignal"]) if "ExitSignal" in ad else None)
        return replace(history, exit_code=int(ad["ExitCode"]) if "ExitCode" in ad else None)
    is_running = status in (states.RUNNING, states.TRANSFERRING_OUTPUT, states.SUSPENDED)
    if is_running and history.started is not None:
        return replace(history, phase=JobPhase.RUNNING)
    return history


def _time(ad: Ad, name: str) -> float | None:
    return float(ad[name]) if name in ad else None


def _host(ad: Ad) -> str:
    for name in ("MachineAttrGLIDEIN_ResourceName0", "MachineAttrMachine0"):
        if ad.get(name):
            return str(ad[name])
    return str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "").rpartition("@")[2]
