"""Fold the events of HTCondor's event log into one history per job.

The order of events varies. A job that a condition holds has no eviction before the hold; a transfer that
failed has an error, an eviction and a hold; "finished transferring" is written for a failed transfer as well.
So each event counts by itself, and nothing is concluded from events that did not come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outlast.domain.model import Cause, Outcome
from outlast.schedulers.base import JobPhase, JobView, Removal
from outlast.schedulers.htcondor.holds import BY_HAND, NOT_YET, describe_manual_hold, explain_hold
from outlast.schedulers.htcondor.states import explain_removal

MEGABYTE = 2**20
#: The hold code for a container that could not be started. HTCondor evicts such a job instead of holding it.
_NO_CONTAINER = 45
#: After this many such starts in a row, the job counts as held.
MOST_FAILED_STARTS = 3


@dataclass(frozen=True)
class Event:
    """An event: its number in HTCondor's list, its time, and its attributes."""

    number: int
    at: float
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class JobHistory:
    """The history of a job so far. Times are the access point's clock."""

    token: str
    job: str
    phase: JobPhase = JobPhase.QUEUED
    reason: str = ""
    host: str = ""
    starts: int = 0
    #: How many of the last starts in a row failed before the job's program began.
    failed_starts: int = 0
    started: float | None = None
    ended: float | None = None
    #: When the job got its slot; None: it has none.
    in_slot_since: float | None = None
    #: Seconds in slots of all starts that are over.
    slot_seconds: float = 0.0
    #: Seconds of these in which input was transferred: for starts of the program, and for starts that failed.
    input_seconds: float = 0.0
    wasted_input_seconds: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    outcome: Outcome | None = None
    removed: Removal = Removal.NO
    releasable: bool = False
    lasting: str = ""
    cause: Cause | None = None
    memory: int | None = None

    def view(self) -> JobView:
        """Return the JobView. `elapsed` is unknown (None) while the job has a slot, or never had one."""
        is_out = self.in_slot_since is None and (self.started is not None or self.slot_seconds > 0)
        return JobView(
            token=self.token,
            job=self.job,
            phase=self.phase,
            host=self.host,
            started=self.started,
            ended=self.ended,
            elapsed=self.slot_seconds if is_out else None,
            bringing=self.input_seconds,
            brought_in_vain=self.wasted_input_seconds,
            exit_code=self.exit_code,
            signal=self.signal,
            outcome=self.outcome,
            removed=self.removed,
            reason=self.reason,
            restarts=max(0, self.starts - 1),
            releasable=self.releasable,
            lasting=self.lasting,
            cause=self.cause,
            memory=self.memory,
        )


def start_history(event: Event, job: str) -> JobHistory | None:
    """Return the history that begins with a submit event; None if it is not a job of Outlast."""
    token = str(event.facts.get("LogNotes", ""))
    return JobHistory(token, job) if token else None


def apply_event(history: JobHistory, event: Event) -> JobHistory:
    """Return the history after one more event. After the end, events are ignored."""
    handler = _HANDLERS.get(event.number)
    return history if handler is None or history.phase is JobPhase.ENDED else handler(history, event)


def _on_execute(history: JobHistory, event: Event) -> JobHistory:
    # The slot, if it had one until now, was used for the transfer of its input.
    wasted_before = history.wasted_input_seconds
    history = _leave_slot(history, event)
    return replace(
        history,
        input_seconds=history.input_seconds + history.wasted_input_seconds - wasted_before,
        wasted_input_seconds=wasted_before,
        phase=JobPhase.RUNNING,
        reason="",
        host=_host(event) or history.host,
        starts=history.starts + 1,
        started=event.at,
        in_slot_since=event.at,
        outcome=None,
        releasable=False,
        lasting="",
        cause=None,
    )


def _host(event: Event) -> str:
    """Return the site, or in a pool without sites the machine: the name that `avoid` uses."""
    facts = event.facts
    props = facts.get("ExecuteProps")
    for source in (props if isinstance(props, Mapping) else {}, facts):
        for name in ("GLIDEIN_ResourceName", "Machine"):
            if source.get(name):
                return str(source[name])
    return str(facts.get("SlotName", "")).partition("@")[2] or str(facts.get("SlotName", ""))


def _leave_slot(history: JobHistory, event: Event) -> JobHistory:
    """Return the history with the time in the slot added; while QUEUED it was a transfer of input."""
    if history.in_slot_since is None:
        return history
    seconds = max(0.0, event.at - history.in_slot_since)
    wasted = seconds if history.phase is JobPhase.QUEUED else 0.0
    return replace(
        history,
        in_slot_since=None,
        slot_seconds=history.slot_seconds + seconds,
        wasted_input_seconds=history.wasted_input_seconds + wasted,
        memory=max(_memory_usage(event) or 0, history.memory or 0) or None,
    )


def _memory_usage(event: Event) -> int | None:
    memory = event.facts.get("MemoryUsage")
    return int(memory) * MEGABYTE if isinstance(memory, (int, float)) else None


def _on_image_size(history: JobHistory, event: Event) -> JobHistory:
    memory = _memory_usage(event)
    return history if memory is None else replace(history, memory=max(memory, history.memory or 0))


def _on_file_transfer(history: JobHistory, event: Event) -> JobHistory:
    kind = event.facts.get("Type")
    if history.phase is JobPhase.QUEUED and kind in (1, 2):
        progress = "queued for transfer" if kind == 1 else "being transferred"
        since = event.at if history.in_slot_since is None else history.in_slot_since
        reason = "matched to a slot; its input files are %s" % progress
        return replace(history, reason=reason, in_slot_since=since)
    if history.phase is JobPhase.RUNNING and kind in (4, 5):
        return replace(history, reason="its results are being transferred back")
    return history


def _on_evicted(history: JobHistory, event: Event) -> JobHistory:
    place = " from %s" % history.host if history.host else ""
    why = _reason(event)
    sentence = "evicted%s, and pending again%s" % (place, " (%s)" % why if why else "")
    code = int(event.facts.get("ReasonCode", 0))
    failed = history.failed_starts + 1 if code == _NO_CONTAINER else 0
    history = replace(_leave_slot(history, event), failed_starts=failed)
    if failed >= MOST_FAILED_STARTS or 0 < failed == history.starts:
        # HTCondor would retry for ever, at the same site. A job that never began has nothing to lose.
        hold = explain_hold(code, int(event.facts.get("ReasonSubCode", 0)), why)
        return replace(history, phase=JobPhase.HELD, outcome=hold.outcome, reason=hold.sentence)
    return replace(history, phase=JobPhase.QUEUED, reason=sentence)


def _on_shadow_exception(history: JobHistory, event: Event) -> JobHistory:
    # The shadow, which manages the job on the access point, gave up on this start.
    reason = "this start failed (%s); pending again" % (_reason(event) or "no reason given")
    return replace(_leave_slot(history, event), phase=JobPhase.QUEUED, reason=reason)


def _on_disconnected(history: JobHistory, event: Event) -> JobHistory:
    reason = "HTCondor lost contact with %s and tries to reconnect" % (history.host or "the site")
    return replace(history, phase=JobPhase.RUNNING, reason=reason)


def _on_running_again(history: JobHistory, event: Event) -> JobHistory:
    return replace(history, phase=JobPhase.RUNNING, reason="")


def _on_reconnect_failed(history: JobHistory, event: Event) -> JobHistory:
    reason = "HTCondor could not reconnect to %s; pending again" % (history.host or "the site")
    return replace(_leave_slot(history, event), phase=JobPhase.QUEUED, reason=reason)


def _on_suspended(history: JobHistory, event: Event) -> JobHistory:
    return replace(history, reason="suspended by the site")


def _on_held(history: JobHistory, event: Event) -> JobHistory:
    code, subcode = (int(event.facts.get(name, 0)) for name in ("HoldReasonCode", "HoldReasonSubCode"))
    return mark_held(_leave_slot(history, event), code, subcode, str(event.facts.get("HoldReason", "")))


def mark_held(history: JobHistory, code: int, subcode: int, reason: str) -> JobHistory:
    """Return the history of a job on hold. A job that a person put on hold is QUEUED, not HELD."""
    if code in NOT_YET:
        waits = "pending until its input files reach the access point"
        return replace(history, phase=JobPhase.QUEUED, reason=waits)
    if code == BY_HAND:
        return replace(history, phase=JobPhase.QUEUED, reason=describe_manual_hold(history.job, reason))
    hold = explain_hold(code, subcode, reason)
    return replace(
        history,
        phase=JobPhase.HELD,
        outcome=hold.outcome,
        reason=hold.sentence,
        releasable=hold.releasable,
        lasting=hold.lasting,
        cause=hold.cause,
    )


def _on_released(history: JobHistory, event: Event) -> JobHistory:
    return replace(
        history,
        phase=JobPhase.QUEUED,
        outcome=None,
        releasable=False,
        lasting="",
        cause=None,
        reason="released, and pending until a slot is free",
    )


def _on_terminated(history: JobHistory, event: Event) -> JobHistory:
    history = replace(
        _leave_slot(history, event), phase=JobPhase.ENDED, ended=event.at, reason="", outcome=None
    )
    if event.facts.get("TerminatedNormally"):
        return replace(history, exit_code=int(event.facts.get("ReturnValue", 0)))
    return replace(history, signal=int(event.facts.get("TerminatedBySignal", 0)) or None)


def _on_aborted(history: JobHistory, event: Event) -> JobHistory:
    return mark_removed(replace(_leave_slot(history, event), ended=event.at), _reason(event))


def mark_removed(history: JobHistory, reason: str) -> JobHistory:
    """Return the history of a job that was removed from the queue, by a person, by Outlast or by a rule."""
    outcome, removed, sentence = explain_removal(reason)
    return replace(
        history, phase=JobPhase.ENDED, outcome=outcome, removed=removed, reason=sentence, releasable=False
    )


def _reason(event: Event) -> str:
    text = event.facts.get("Reason") or event.facts.get("Message") or ""
    return " ".join(str(text).split()).rstrip(".")[:400]


_HANDLERS: Mapping[int, Callable[[JobHistory, Event], JobHistory]] = {
    1: _on_execute,
    4: _on_evicted,
    5: _on_terminated,
    6: _on_image_size,
    7: _on_shadow_exception,
    9: _on_aborted,
    10: _on_suspended,
    11: _on_running_again,
    12: _on_held,
    13: _on_released,
    22: _on_disconnected,
    23: _on_running_again,
    24: _on_reconnect_failed,
    40: _on_file_transfer,
}
