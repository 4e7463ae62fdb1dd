"""The jobs and the times of an attempt, as `explain` shows them.

A job may be started several times, and a chain is several jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlast.cli.common import show_time
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry
from outlast.text import counted
from outlast.units import show_duration


def show_jobs(attempt: Attempt, entries: Iterable[JournalEntry]) -> str:
    """Return `job 17 on n1`, or all jobs of a chain; `entries` are the attempt's."""
    recorded = [
        entry.data.get("job") or ""
        for entry in entries
        if entry.kind in (EntryKind.QUEUED, EntryKind.STARTED)
    ]
    jobs = [job for text in (*recorded, attempt.job) for job in text.split(",") if job]
    names = list(dict.fromkeys(jobs))
    if len(names) < 2:
        return "job %s%s" % (attempt.job, " on %s" % attempt.host if attempt.host else "")
    return "jobs %s%s" % (", ".join(names), "; last on %s" % attempt.host if attempt.host else "")


def show_times(attempt: Attempt, entries: Sequence[JournalEntry]) -> str:
    """Return start, end and the time in the queue before and in between; empty if it has not started."""
    if attempt.started is None:
        return ""
    ended = attempt.ended if attempt.state is AttemptState.ENDED else None
    starts = 1 + max(attempt.restarts, len(attempt.account.earlier))
    first = attempt.started if starts == 1 else _find_first_start(entries)
    if first is None:
        return _show_last_start(attempt, starts, ended)
    text = show_time(first) + (" to %s" % show_time(ended) if ended is not None else "")
    text += " in %s" % counted(starts, "start") if starts > 1 else ""
    waits = [_show_wait(attempt.queued, first, "in the queue")]
    slot = attempt.account.slot
    if starts > 1 and ended is not None and slot:
        waits.append(_show_wait(first + slot, ended, "between starts"))
    waits = [wait for wait in waits if wait]
    return text + (", after %s" % " and ".join(waits) if waits else "")


def _show_last_start(attempt: Attempt, starts: int, ended: float | None) -> str:
    """Return the times of an attempt whose first start was not observed."""
    if ended is None:
        return "%s, the last at %s" % (counted(starts, "start"), show_time(attempt.started))
    text = "%s, the last from %s to %s" % (
        counted(starts, "start"),
        show_time(attempt.started),
        show_time(ended),
    )
    slot = attempt.account.slot
    wait = (
        _show_wait(attempt.queued + slot, ended, "in the queue in total") if attempt.queued and slot else ""
    )
    return text + (", after %s" % wait if wait else "")


def _find_first_start(entries: Iterable[JournalEntry]) -> float | None:
    for entry in entries:
        if entry.kind is EntryKind.STARTED:
            # The first start that was recorded may be a restart.
            started = entry.data.get("started")
            return float(started) if started is not None and not entry.data.get("restarts") else None
    return None


def _show_wait(since: float | None, until: float, place: str) -> str:
    if since is None or until - since < 1:
        return ""
    return "%s %s" % (show_duration(until - since), place)
