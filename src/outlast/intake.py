"""What follows from the requests in the inbox: who was added, who is to be cancelled or tried again."""

from __future__ import annotations

from outlast.crashpoints import reach
from outlast.domain.model import Entry, Kind, RunState, Spec
from outlast.inbox import Cancel, Inbox, Request, Retry, Submit
from outlast.journal.journal import Journal


def take_requests(journal: Journal, inbox: Inbox, now: float) -> list[str]:
    """Put the requests that are waiting into the journal; notes for people about those that were none."""
    notes: list[str] = []
    for name, request in inbox.read():
        if request is None:
            notes.append("%s could not be read as a request" % inbox.put_aside(name))
            continue
        if not journal.has_request(name):
            elsewhere = "" if isinstance(request, Cancel) else under_way_elsewhere(journal, request.spec)
            if elsewhere:
                notes.append("a request was refused: %s" % elsewhere)
            entries = [] if elsewhere else _consequences(journal, request, now)
            journal.take_request(name, now, entries)
            reach("submit.recorded")
        inbox.remove(name)
        reach("submit.removed")
    return notes


def under_way_elsewhere(journal: Journal, spec: Spec) -> str:
    """One experiment is on one cluster at a time: jobs on the one before would be out of sight."""
    for run in journal.live().values():
        before = journal.spec(run.spec)
        if before.cluster != spec.cluster:
            return (
                "run %s is under way on cluster %s; wait for it or `outlast cancel --all` before "
                "submitting to %s" % (run.name, before.cluster, spec.cluster)
            )
    return ""


def _consequences(journal: Journal, request: Request, now: float) -> list[Entry]:
    match request:
        case Submit(spec, plans):
            number = journal.add_spec(spec)
            known = set(journal.names())
            fresh = [plan for plan in plans if plan.name not in known]
            return [
                Entry(now, plan.name, Kind.ADDED, None, {
                    "position": len(known) + index, "spec": number, "params": dict(plan.params),
                })
                for index, plan in enumerate(fresh)
            ]  # fmt: skip
        case Cancel(names, reason):
            chosen = list(journal.live()) if names is None else names
            return [
                Entry(now, run.name, Kind.CANCEL_ASKED, None, {"reason": reason})
                for run in map(journal.run, chosen)
                if run is not None and run.state in (RunState.WAITING, RunState.ACTIVE)
            ]
        case Retry(spec, names):
            number = journal.add_spec(spec)
            return [
                Entry(now, run.name, Kind.RETRIED, None, {"spec": number})
                for run in map(journal.run, names)
                if run is not None and run.state in (RunState.FAILED, RunState.CANCELLED)
            ]
