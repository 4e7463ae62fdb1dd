"""Failures that runs have in common: after a few of them, the runs that have not begun are held back.

Only failures that the training causes count (`Run.alike`), and only those after a run was submitted, retried
or resumed: so nothing is held back again for what the user has seen. A scheduler may start all runs once
before it starts one again, so runs that have not begun also wait while others that failed alike are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from outlast.domain.model import Attempt, Outcome, Run, RunState
from outlast.node.failure_streak import TRAINING_FAILURES

#: Runs that must have failed alike.
ENOUGH = 3
#: Failed runs that are named.
_NAMED = 3
#: A retry has passed the failure once it runs this many times as long as the run had computed before, and
#: this many seconds more.
PASSED_FACTOR, PASSED_SECONDS = 2.0, 60.0


@dataclass(frozen=True)
class FailedRun:
    """A failed run, or one that is being retried, as far as others depend on it."""

    name: str
    at: float
    detail: str


#: Runs by what their failures have in common, and by name.
AlikeFailures = Mapping[str, Mapping[str, FailedRun]]


@dataclass(frozen=True)
class HoldBack:
    """Why a run must not begin. `final`: until the user decides; else until the others were retried."""

    reason: str
    final: bool


def key_of(outcome: Outcome, signature: str | None) -> str:
    """Return what failures with this outcome and signature have in common."""
    return "%s %s" % (outcome.value, signature)


def summarize(run: Run) -> FailedRun | None:
    """Return what other runs need to know about a run that failed for a bug; None if it did not."""
    if run.state is not RunState.FAILED or not run.alike or run.last is None:
        return None
    return FailedRun(run.name, run.last.at, run.last.detail)


def add_retried(
    failed: AlikeFailures, live: Iterable[Run], current: Callable[[Run], Attempt | None], now: float
) -> AlikeFailures:
    """Return `failed` and the runs that failed once, and whose retry has not passed the failure yet."""
    found: dict[str, dict[str, FailedRun]] = {}
    for run in live:
        last = run.last
        if not run.failures or last is None or last.outcome not in TRAINING_FAILURES or last.lacked_memory:
            continue
        attempt = current(run)
        started = attempt.started if attempt is not None else None
        if started is None or now - started <= PASSED_FACTOR * run.observed + PASSED_SECONDS:
            same = found.setdefault(key_of(last.outcome, run.failure), {})
            same[run.name] = FailedRun(run.name, last.at, last.detail)
    return {key: {**failed.get(key, {}), **same} for key, same in found.items()}


def has_begun(run: Run) -> bool:
    """Return True if an attempt held a slot since the run was submitted, retried or resumed."""
    return run.ran > 0 or run.unpublished or run.accepted is not None


def why_hold_back(run: Run, failed: AlikeFailures, retried: AlikeFailures) -> HoldBack | None:
    """Return why a run must not begin: others failed alike; None if it may. `retried`: see `add_retried`."""
    if has_begun(run) or run.cancel_asked:
        return None
    for groups, final in ((failed, True), (retried, False)):
        for same in groups.values():
            since = [one for one in same.values() if one.at > run.since]
            if len(since) >= ENOUGH:
                return HoldBack(describe(since, final), final)
    return None


def describe(failed: Iterable[FailedRun], final: bool) -> str:
    """Return that these runs failed alike, and what to type, or what is waited for."""
    ordered = sorted(failed, key=lambda one: one.at)
    if not final:  # the same for more of them: it is printed once
        return "several runs failed alike: %s; they are retried before others begin" % ordered[0].detail
    names = ", ".join(one.name for one in ordered[:_NAMED]) + (", …" if len(ordered) > _NAMED else "")
    text = "%d runs failed alike (%s): %s" % (len(ordered), names, ordered[-1].detail)
    return text + (
        ". After a fix, `outlast retry --failed` retries them and starts the others; `outlast resume` starts "
        "the others as they were submitted"
    )
