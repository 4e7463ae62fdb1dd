"""Which jobs carried an attempt, and when. One job may be started again, and a chain is several jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlast.cli.common import clock
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry
from outlast.text import counted
from outlast.units import show_duration


def where(attempt: Attempt, entries: Iterable[JournalEntry]) -> str:
    """`job 17 on n1`, or all jobs of a chain."""
    told = [
        entry.data.get("job") or ""
        for entry in entries
        if entry.kind in (EntryKind.QUEUED, EntryKind.STARTED)
    ]
    jobs = [job for text in (*told, attempt.job) for job in text.split(",") if job]
    names = list(dict.fromkeys(jobs))
    if len(names) < 2:
        return "job %s%s" % (attempt.job, " on %s" % attempt.host if attempt.host else "")
    return "jobs %s%s" % (", ".join(names), "; last on %s" % attempt.host if attempt.host else "")


def when(attempt: Attempt, entries: Sequence[JournalEntry]) -> str:
    """From when to when, and how long it was in the queue before and in between; empty before it began."""
    if attempt.started is None:
        return ""
    ended = attempt.ended if attempt.state is AttemptState.ENDED else None
    starts = 1 + max(attempt.restarts, len(attempt.account.earlier))
    first = attempt.started if starts == 1 else _first_start(entries)
    if first is None:
        return _unseen(attempt, starts, ended)
    text = clock(first) + (" to %s" % clock(ended) if ended is not None else "")
    text += " in %s" % counted(starts, "start") if starts > 1 else ""
    waits = [_waited(attempt.queued, first, "in the queue")]
    slot = attempt.account.slot
    if starts > 1 and ended is not None and slot:
        waits.append(_waited(first + slot, ended, "between starts"))
    waits = [wait for wait in waits if wait]
    return text + (", after %s" % " and ".join(waits) if waits else "")


def _unseen(attempt: Attempt, starts: int, ended: float | None) -> str:
    """Nobody looked while the first of its starts ran."""
    if ended is None:
        return "%s, the last at %s" % (counted(starts, "start"), clock(attempt.started))
    text = "%s, the last from %s to %s" % (counted(starts, "start"), clock(attempt.started), clock(ended))
    slot = attempt.account.slot
    waited = _waited(attempt.queued + slot, ended, "in the queue in all") if attempt.queued and slot else ""
    return text + (", after %s" % waited if waited else "")


def _first_start(entries: Iterable[JournalEntry]) -> float | None:
    for entry in entries:
        if entry.kind is EntryKind.STARTED:
            # The first that was seen need not be the first there was.
            started = entry.data.get("started")
            return float(started) if started is not None and not entry.data.get("restarts") else None
    return None


def _waited(since: float | None, until: float, where: str) -> str:
    if since is None or until - since < 1:
        return ""
    return "%s %s" % (show_duration(until - since), where)
