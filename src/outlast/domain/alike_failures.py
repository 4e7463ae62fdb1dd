"""Failures that runs have in common: after a few of them, the runs that have not begun are held back.

Only failures that the training causes count (`Run.alike`), and only those after a run was submitted, retried
or resumed: so nothing is held back again for what the user has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlast.domain.model import Run, RunState

#: Runs that must have failed alike.
ENOUGH = 3
#: Failed runs that are named.
_NAMED = 3


@dataclass(frozen=True)
class FailedRun:
    """A failed run, as far as others depend on it."""

    name: str
    at: float
    detail: str


#: The failed runs by what they have in common.
AlikeFailures = Mapping[str, Mapping[str, FailedRun]]


def summarize(run: Run) -> FailedRun | None:
    """Return what other runs need to know about a run that failed for a bug; None if it did not."""
    if run.state is not RunState.FAILED or not run.alike or run.last is None:
        return None
    return FailedRun(run.name, run.last.at, run.last.detail)


def has_begun(run: Run) -> bool:
    """Return True if an attempt held a slot since the run was submitted, retried or resumed."""
    return run.ran > 0 or run.unpublished or run.accepted is not None


def why_hold_back(run: Run, failed: AlikeFailures) -> str:
    """Return why a run must not begin: others failed alike; empty if it may."""
    if has_begun(run) or run.cancel_asked:
        return ""
    for same in failed.values():
        since = [one for one in same.values() if one.at > run.since]
        if len(since) >= ENOUGH:
            return describe(since)
    return ""


def describe(failed: Iterable[FailedRun]) -> str:
    """Return that these runs failed alike, and what to type."""
    ordered = sorted(failed, key=lambda one: one.at)
    names = ", ".join(one.name for one in ordered[:_NAMED]) + (", …" if len(ordered) > _NAMED else "")
    return (
        "%d runs failed alike (%s): %s. After a fix, `outlast retry --failed` retries them and starts the "
        "others; `outlast resume` starts the others as they were submitted"
        % (len(ordered), names, ordered[-1].detail)
    )
