"""Choose between event log, queue and history for each job, and return its JobView."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from outlast.schedulers.base import JobPhase, JobView
from outlast.schedulers.htcondor.job_history import JobHistory
from outlast.schedulers.htcondor.listing import Ad, history_from_ad
from outlast.schedulers.htcondor.states import explain_idle

#: An event is in the log this many seconds after it happened, at the latest.
_LOG_DELAY = 60.0


def build_views(
    logged: Mapping[str, JobHistory], queue: Mapping[str, Ad], archived: Mapping[str, Ad], slots: Sequence[Ad]
) -> dict[str, JobView]:
    """Return the views by token, from the event logs, the ads of queue and history, and the pool's slots.

    A job that left the queue is left out if neither log nor history has its end.
    """
    ads = {**archived, **queue}
    views: dict[str, JobView] = {}
    for token in (*logged, *(token for token in ads if token not in logged)):
        history = logged.get(token)
        if history is None or not _is_complete(history, queue.get(token)):
            history = history_from_ad(ads[token]) if token in ads else None
        if history is not None:
            views[token] = _build_view(history, queue.get(token), slots)
    return views


def _is_complete(history: JobHistory, ad: Ad | None) -> bool:
    """Return True if the log has all that happened to a job; `ad` is the one in the queue, if there is one.

    Events are missing if the log's disk was full, or a line is truncated.
    """
    if ad is None:
        return history.phase is JobPhase.ENDED
    if history_from_ad(ad).phase is history.phase:
        return True
    is_late = time.time() - float(ad.get("EnteredCurrentStatus") or time.time()) > _LOG_DELAY
    return not is_late


def _build_view(history: JobHistory, ad: Ad | None, slots: Sequence[Ad]) -> JobView:
    view = history.view()
    if view.phase is not JobPhase.QUEUED or view.reason or ad is None:
        return view
    return replace(view, reason=explain_idle(ad, slots))
