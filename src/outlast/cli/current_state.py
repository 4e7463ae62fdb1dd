"""The state of a run now: by the journal, and by what its job has logged and the scheduler lists since.

Between two passes of a controller the journal is older than the truth: a job may have started, ended or died.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.cli.common import show_time
from outlast.domain.model import Attempt, AttemptState, Outcome, Removal, Run, RunState, Spec
from outlast.text import counted, printable

if TYPE_CHECKING:
    from outlast.domain.observation import JobView
    from outlast.exchange.attempt_log import Glance

#: A node program writes to its log every 15 seconds; after this many without a line it may be dead.
SILENT_AFTER = 60.0


@dataclass(frozen=True)
class CurrentState:
    """A state in one word, a sentence about it without a full stop, and since when it is so."""

    word: str
    detail: str
    since: float
    #: The job runs, and its progress says more than `detail`.
    running: bool = False


def of_attempt(
    run: Run,
    attempt: Attempt,
    glance: Glance | None,
    views: Mapping[str, JobView] | None,
    supervised: bool,
    now: float,
) -> CurrentState:
    """Return the state of a run with a current attempt.

    `glance` is what its job has logged, `views` what the scheduler lists now; None: it was not asked.
    """
    view = views.get(attempt.token) if views is not None else None
    since = attempt.started or attempt.queued or attempt.intended
    if run.cancel_asked or attempt.cancel_sent is not None:
        why = run.cancel_asked or (attempt.condemned[1] if attempt.condemned else "")
        return CurrentState("cancelling", printable(why), attempt.cancel_since or since)
    if attempt.blocked:
        text = "cannot be settled since %s: %s" % (
            show_time(attempt.blocked_since),
            printable(attempt.blocked),
        )
        return CurrentState(attempt.state.value, text, since)
    if glance is not None and _is_of_earlier_start(attempt, glance, view):
        glance = None
    if glance is not None and glance.outcome is not None:
        return _ended(attempt, glance, supervised)
    if views is not None:
        return _listed(attempt, view, since)
    if glance is not None and attempt.state is not AttemptState.RUNNING:
        # It has started since the last pass.
        return _running(attempt, glance.host or attempt.host, glance.claimed or since, glance, now)
    if attempt.missed is not None:
        return CurrentState(
            "missing", "neither listed nor an end logged since %s" % show_time(attempt.missed), since
        )
    if attempt.state is AttemptState.RUNNING:
        if glance is None and not supervised:
            text = "last seen running %s%s" % (
                show_time(since),
                " on %s" % attempt.host if attempt.host else "",
            )
            return CurrentState("unknown", text, since)
        return _running(attempt, attempt.host, since, glance, now)
    return _queued(attempt, since, supervised)


def _is_of_earlier_start(attempt: Attempt, glance: Glance, view: JobView | None) -> bool:
    """Return True if the job was requeued, or started again, after it wrote this log."""
    if view is not None and view.restarts >= glance.leg:
        return True
    is_requeued = attempt.state is AttemptState.QUEUED and attempt.started is not None
    return is_requeued and (glance.claimed or 0.0) <= (attempt.waits_since or 0.0)


def _running(attempt: Attempt, host: str, since: float, glance: Glance | None, now: float) -> CurrentState:
    if glance is not None and now - glance.last_logged > SILENT_AFTER:
        place = " on %s" % host if host else ""
        return CurrentState(
            "unknown", "last seen running %s%s" % (show_time(glance.last_logged), place), since
        )
    text = "on %s" % host if host else ""
    return CurrentState("running", text, since, running=True)


def _ended(attempt: Attempt, glance: Glance, supervised: bool) -> CurrentState:
    assert glance.outcome is not None
    if attempt.jobs > glance.leg and glance.outcome is not Outcome.FINISHED:
        text = "job %d of its chain ended as %s; waiting for the next" % (glance.leg, glance.outcome.value)
        return CurrentState("queued", text, glance.last_logged)
    text = "attempt %d ended as %s" % (attempt.number, glance.outcome.value)
    if glance.outcome is not Outcome.FINISHED and glance.detail:
        text += ": %s" % printable(glance.detail)
    if not supervised:
        follows = "publishes its results" if glance.outcome is Outcome.FINISHED else "continues"
        text += "; `outlast up` or `outlast tick` %s" % follows
    return CurrentState("ended", text, glance.last_logged)


def _queued(attempt: Attempt, since: float, supervised: bool) -> CurrentState:
    why = printable(attempt.waits) or printable(attempt.reason)
    seen = attempt.waits_since or attempt.queued
    if attempt.started is not None and attempt.jobs == 1:
        return CurrentState("requeued", why, attempt.waits_since or since)
    if not supervised and attempt.waits and seen is not None:
        why += " (as of %s)" % show_time(seen)
    return CurrentState(attempt.state.value, why, since)


def _listed(attempt: Attempt, view: JobView | None, since: float) -> CurrentState:
    """Return the state by what the scheduler lists just now."""
    from outlast.domain.observation import JobPhase

    if view is None:
        return CurrentState("missing", "the scheduler does not list its job", since)
    reason = printable(view.reason)
    if view.phase is JobPhase.RUNNING:
        text = ", ".join(filter(None, ("on %s" % view.host if view.host else "", reason)))
        return CurrentState("running", text, view.started or since, running=True)
    if view.phase is JobPhase.ENDED:
        return CurrentState(
            "ended", reason or "its job has ended without logging an outcome", view.ended or since
        )
    again = attempt.started is not None and attempt.jobs == 1
    word = "held" if view.phase is JobPhase.HELD else "requeued" if again else "queued"
    return CurrentState(word, reason or printable(attempt.reason), since)


def of_waiting(run: Run, spec: Spec | None, active: int, supervised: bool) -> CurrentState:
    """Return the state of a run without a current attempt; `active` is the number of runs that have one."""
    since = max(run.since, run.last.at) if run.last else run.since
    if run.state.over:
        return CurrentState(run.state.value, printable(run.reason), since)
    if run.state is RunState.HELD_BACK:
        removed = run.last is not None and run.last.removed is Removal.OTHER
        text = printable(run.reason) if removed else "others failed alike"
        return CurrentState(run.state.value, text, since)
    if run.state is not RunState.WAITING or (run.last is not None and run.last.outcome is Outcome.FINISHED):
        return CurrentState(run.state.value, "publishing its results", since)
    if run.cancel_asked:
        return CurrentState("cancelling", printable(run.cancel_asked), since)
    before = ""
    if run.last is not None:
        before = "; attempt %d ended as %s: %s" % (
            run.last.number,
            run.last.outcome.value,
            printable(run.last.detail),
        )
    return CurrentState(
        run.state.value, "for %s%s" % (_awaited(run, spec, active, supervised), before), since
    )


def _awaited(run: Run, spec: Spec | None, active: int, supervised: bool) -> str:
    if not supervised:
        return "`outlast up` or `outlast tick`, which submits its %s" % (
            "next attempt" if run.attempts else "first job"
        )
    if spec is not None and spec.parallel is not None and active >= spec.parallel:
        return "one of %s to end (parallel: %d)" % (counted(active, "active run"), spec.parallel)
    if run.last is not None and run.troubles:
        return "the end of a pause between attempts"
    return "its turn to be submitted"
