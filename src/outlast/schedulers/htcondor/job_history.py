"""What HTCondor's event log tells of each job: a fold of its events, one story per job.

The order of events varies. A job that a condition holds has no eviction before the hold; a transfer that
failed has an error, an eviction and a hold; "finished transferring" is written for a failed transfer as well.
So an event counts for what it says itself, and nothing is concluded from events that did not come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outlast.domain.model import Cause, Outcome
from outlast.schedulers.base import JobPhase, JobView
from outlast.schedulers.htcondor.holds import BY_HAND, NOT_YET, by_hand, explain

MEGABYTE = 2**20
#: The code of a hold that HTCondor does not put, though it says so: a site that could not start a container.
_NO_CONTAINER = 45
#: So many such starts in a row, and the job is taken as held.
MOST_FAILED_STARTS = 3


@dataclass(frozen=True)
class Event:
    """One event: its number in HTCondor's list, when, and what it says."""

    number: int
    at: float
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class JobHistory:
    """One job so far. Times are the access point's clock."""

    token: str
    job: str
    phase: JobPhase = JobPhase.QUEUED
    reason: str = ""
    host: str = ""
    starts: int = 0
    #: How many of the last starts failed before the job's program had begun.
    failed_starts: int = 0
    started: float | None = None
    ended: float | None = None
    #: The job is in a slot since then; None: it is in none.
    running_since: float | None = None
    #: Seconds in slots, for the starts that are over; and those of them in which input was brought there.
    spent: float = 0.0
    bringing: float = 0.0
    in_vain: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    outcome: Outcome | None = None
    releasable: bool = False
    lasting: str = ""
    cause: Cause | None = None
    memory: int | None = None

    def view(self) -> JobView:
        in_no_slot = self.running_since is None and (self.started is not None or self.spent > 0)
        return JobView(
            token=self.token,
            job=self.job,
            phase=self.phase,
            host=self.host,
            started=self.started,
            ended=self.ended,
            elapsed=self.spent if in_no_slot else None,
            bringing=self.bringing,
            brought_in_vain=self.in_vain,
            exit_code=self.exit_code,
            signal=self.signal,
            outcome=self.outcome,
            reason=self.reason,
            restarts=max(0, self.starts - 1),
            releasable=self.releasable,
            lasting=self.lasting,
            cause=self.cause,
            memory=self.memory,
        )


def begin(event: Event, job: str) -> JobHistory | None:
    """From the event of its submission; None if it is not one of Outlast's jobs."""
    token = str(event.facts.get("LogNotes", ""))
    return JobHistory(token, job) if token else None


def follow(story: JobHistory, event: Event) -> JobHistory:
    """The story after one more event. Nothing follows the end."""
    tell = _EVENTS.get(event.number)
    return story if tell is None or story.phase is JobPhase.ENDED else tell(story, event)


def _executes(story: JobHistory, event: Event) -> JobHistory:
    """Until now the slot, if it had one, was held by the transfer of its input."""
    before = story.in_vain
    story = _leaves_slot(story, event)
    return replace(
        story,
        bringing=story.bringing + story.in_vain - before,
        in_vain=before,
        phase=JobPhase.RUNNING,
        reason="",
        host=_host(event) or story.host,
        starts=story.starts + 1,
        started=event.at,
        running_since=event.at,
        outcome=None,
        releasable=False,
        lasting="",
        cause=None,
    )


def _host(event: Event) -> str:
    """The site, or where there are none the machine: what `avoid` names."""
    facts = event.facts
    props = facts.get("ExecuteProps")
    for source in (props if isinstance(props, Mapping) else {}, facts):
        for name in ("GLIDEIN_ResourceName", "Machine"):
            if source.get(name):
                return str(source[name])
    return str(facts.get("SlotName", "")).partition("@")[2] or str(facts.get("SlotName", ""))


def _leaves_slot(story: JobHistory, event: Event) -> JobHistory:
    if story.running_since is None:
        return story
    seconds = max(0.0, event.at - story.running_since)
    memory = event.facts.get("MemoryUsage")
    told = int(memory) * MEGABYTE if isinstance(memory, (int, float)) else 0
    return replace(
        story,
        running_since=None,
        spent=story.spent + seconds,
        in_vain=story.in_vain + (seconds if story.phase is JobPhase.QUEUED else 0.0),
        memory=max(told, story.memory or 0) or None,
    )


def _grows(story: JobHistory, event: Event) -> JobHistory:
    """Event 006 tells how much memory it uses, now and then."""
    memory = event.facts.get("MemoryUsage")
    if not isinstance(memory, (int, float)):
        return story
    return replace(story, memory=max(int(memory) * MEGABYTE, story.memory or 0))


def _transfers(story: JobHistory, event: Event) -> JobHistory:
    kind = event.facts.get("Type")
    if story.phase is JobPhase.QUEUED and kind in (1, 2):
        waits = "in line to be sent" if kind == 1 else "on their way"
        since = event.at if story.running_since is None else story.running_since
        reason = "a slot was found, and its input files are %s" % waits
        return replace(story, reason=reason, running_since=since)
    if story.phase is JobPhase.RUNNING and kind in (4, 5):
        return replace(story, reason="its results are on their way back")
    return story


def _evicted(story: JobHistory, event: Event) -> JobHistory:
    place = " from %s" % story.host if story.host else ""
    why = _said(event)
    reason = "was evicted%s and waits to be started again%s" % (place, " (%s)" % why if why else "")
    code = int(event.facts.get("ReasonCode", 0))
    failed = story.failed_starts + 1 if code == _NO_CONTAINER else 0
    story = replace(_leaves_slot(story, event), failed_starts=failed)
    if failed >= MOST_FAILED_STARTS or 0 < failed == story.starts:
        # HTCondor would try for ever, and at the same site. A job that never began has nothing to lose.
        hold = explain(code, int(event.facts.get("ReasonSubCode", 0)), why)
        return replace(story, phase=JobPhase.HELD, outcome=hold.outcome, reason=hold.words)
    return replace(story, phase=JobPhase.QUEUED, reason=reason)


def _broken_off(story: JobHistory, event: Event) -> JobHistory:
    """The shadow, which looks after the job on the access point, gave up on this start."""
    said = _said(event) or "no reason given"
    reason = "this start failed (%s); it waits to be started again" % said
    return replace(_leaves_slot(story, event), phase=JobPhase.QUEUED, reason=reason)


def _disconnected(story: JobHistory, event: Event) -> JobHistory:
    reason = "HTCondor has lost contact with %s and tries to find the job there again" % (
        story.host or "the site"
    )
    return replace(story, phase=JobPhase.RUNNING, reason=reason)


def _reconnected(story: JobHistory, event: Event) -> JobHistory:
    return replace(story, phase=JobPhase.RUNNING, reason="")


def _reconnect_failed(story: JobHistory, event: Event) -> JobHistory:
    reason = "contact with %s was lost for good; it waits to be started again" % (story.host or "the site")
    return replace(_leaves_slot(story, event), phase=JobPhase.QUEUED, reason=reason)


def _suspended(story: JobHistory, event: Event) -> JobHistory:
    return replace(story, reason="the site has suspended it")


def _held(story: JobHistory, event: Event) -> JobHistory:
    code, subcode = (int(event.facts.get(name, 0)) for name in ("HoldReasonCode", "HoldReasonSubCode"))
    return held(_leaves_slot(story, event), code, subcode, str(event.facts.get("HoldReason", "")))


def held(story: JobHistory, code: int, subcode: int, said: str) -> JobHistory:
    if code in NOT_YET:
        return replace(
            story, phase=JobPhase.QUEUED, reason="waits for its input files to reach the access point"
        )
    if code == BY_HAND:
        return replace(story, phase=JobPhase.QUEUED, reason=by_hand(story.job, said))
    hold = explain(code, subcode, said)
    return replace(
        story,
        phase=JobPhase.HELD,
        outcome=hold.outcome,
        reason=hold.words,
        releasable=hold.releasable,
        lasting=hold.lasting,
        cause=hold.cause,
    )


def _released(story: JobHistory, event: Event) -> JobHistory:
    return replace(
        story,
        phase=JobPhase.QUEUED,
        outcome=None,
        releasable=False,
        lasting="",
        cause=None,
        reason="was released and waits for a slot",
    )


def _terminated(story: JobHistory, event: Event) -> JobHistory:
    story = replace(_leaves_slot(story, event), phase=JobPhase.ENDED, ended=event.at, reason="", outcome=None)
    if event.facts.get("TerminatedNormally"):
        return replace(story, exit_code=int(event.facts.get("ReturnValue", 0)))
    return replace(story, signal=int(event.facts.get("TerminatedBySignal", 0)) or None)


def _aborted(story: JobHistory, event: Event) -> JobHistory:
    return removed(replace(_leaves_slot(story, event), ended=event.at), _said(event))


def removed(story: JobHistory, said: str) -> JobHistory:
    """Removed from the queue: by a person or by us, or by a rule of the access point."""
    by_rule = "PERIODIC_REMOVE" in said.upper() or "PeriodicRemove" in said
    outcome = Outcome.EVICTED if by_rule else Outcome.CANCELLED
    reason = "removed from the queue (%s)" % said if said else "removed from the queue"
    return replace(story, phase=JobPhase.ENDED, outcome=outcome, reason=reason, releasable=False)


def _said(event: Event) -> str:
    words = event.facts.get("Reason") or event.facts.get("Message") or ""
    return " ".join(str(words).split()).rstrip(".")[:400]


_EVENTS: Mapping[int, Callable[[JobHistory, Event], JobHistory]] = {
    1: _executes,
    4: _evicted,
    5: _terminated,
    6: _grows,
    7: _broken_off,
    9: _aborted,
    10: _suspended,
    11: _reconnected,
    12: _held,
    13: _released,
    22: _disconnected,
    23: _reconnected,
    24: _reconnect_failed,
    40: _transfers,
}
