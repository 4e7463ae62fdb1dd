"""Decisions about attempts whose files are gone, or cannot be read or written.

Files that are gone end the attempt at once. Other errors may pass: the attempt waits for
`Patience.longest_pause` seconds, then it ends with the path and the cause. An outcome that is known stays as
it is, except that a result which is gone with its directory is lost. In both cases the end of the attempt may
be recorded without a fence. That is safe:

- Only the current attempt of a run is read, accepted and published. Once the journal has its end, nothing
  that its job writes can become a result, whatever is in its directory.
- The engine ends an attempt only if its job logged its end, or if the scheduler lists the job as ended or not
  at all; a running job whose directory is gone is cancelled before. A job that turns up later is cancelled as
  a twin.
- The next attempt claims a newer generation of the checkpoints, after which a job of this one cannot save. A
  script that does without generations is stopped by the fences that `Exchange.shut` creates in the place of
  a directory that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.domain import outcomes
from outlast.domain.attempt_end import end_attempt, end_by_report
from outlast.domain.decision import Decision, record
from outlast.domain.model import Attempt, Cause, EntryKind, Outcome, Run
from outlast.domain.observation import Patience, Report
from outlast.domain.outcomes import Conclusion


def plan_end(run: Run, attempt: Attempt, report: Report | None, now: float) -> Decision:
    """Return the entry that would end a missing attempt if its fence had not failed."""
    if report is not None and outcomes.is_final(report, attempt.restarts):
        return end_by_report(run, attempt, None, report, now)
    return end_attempt(run, attempt, None, report, outcomes.when_silent(attempt), now)


def decide_when_gone(run: Run, attempt: Attempt, path: str, planned: Mapping[str, Any]) -> Decision:
    """End an attempt whose directory `path` is gone: nothing can bring it back.

    `planned` is the data of the entry that would have ended it.
    """
    return _end(run, attempt, outcomes.when_gone(run, attempt, path), Cause.UNKNOWN, planned)


def decide_when_blocked(
    run: Run, attempt: Attempt, error: str, planned: Mapping[str, Any], patience: Patience, now: float
) -> Decision | None:
    """Decide about an attempt that cannot be ended because of `error`; None: wait.

    `planned` is the data of the entry that would have ended it.
    """
    if not _is_over(attempt, _wait(run, patience), now):
        return _note(run, attempt, error, now)
    conclusion = outcomes.when_blocked(run, attempt, error)
    return _end(run, attempt, conclusion, Cause.ACCESS_POINT, {**planned, "blocked": True})


def decide_when_unpublished(
    run: Run, attempt: Attempt, error: str, delivery: str, patience: Patience, now: float
) -> Decision | None:
    """Decide about a run whose accepted result, in `delivery`, cannot be published; None: wait."""
    if not _is_over(attempt, _wait(run, patience), now):
        return _note(run, attempt, error, now)
    kept = "its results are in %s" % delivery
    if run.cancel_asked:
        reason = "%s; %s" % (run.cancel_asked, kept)
        return record(run, EntryKind.CANCELLED, None, reason, {"unpublished": True})
    repair = "Repair this, then `outlast retry %s` publishes them" % run.name
    reason = "its results could not be published: %s; %s. %s" % (error, kept, repair)
    return record(run, EntryKind.FAILED, None, reason, {"unpublished": True})


def unblocked(run: Run, attempt: Attempt) -> Decision:
    """Return the entry for an attempt whose files can be read and written again."""
    return record(run, EntryKind.BLOCKED, attempt.token)


def _wait(run: Run, patience: Patience) -> float:
    """Return how many seconds an error may last; a user who cancels does not wait for repairs."""
    return patience.missing if run.cancel_asked else patience.longest_pause


def _is_over(attempt: Attempt, wait: float, now: float) -> bool:
    return attempt.blocked_since is not None and now - attempt.blocked_since >= wait


def _note(run: Run, attempt: Attempt, error: str, now: float) -> Decision | None:
    """Return the entry that shows the error to the user; None if there is one already."""
    # A clock that was set back must not stretch the wait.
    if attempt.blocked_since is not None and now >= attempt.blocked_since:
        return None
    return record(run, EntryKind.BLOCKED, attempt.token, error)


def _end(
    run: Run, attempt: Attempt, conclusion: Conclusion, cause: Cause, planned: Mapping[str, Any]
) -> Decision:
    """Return the entry that ends an attempt with `conclusion`, or with the outcome that was known before."""
    known, (outcome, detail) = Outcome(planned["outcome"]), conclusion
    changes = {}
    if known is Outcome.LOST or (known is Outcome.FINISHED and outcome is Outcome.LOST):
        changes = {"outcome": outcome.value, "cause": cause.value}
    elif known is Outcome.CANCELLED or detail in planned["detail"]:
        detail = planned["detail"]
    else:
        detail = "%s; %s" % (planned["detail"], detail)
    data = {**planned, **changes, "detail": detail, "reason": detail}
    return record(run, EntryKind.ENDED, attempt.token, detail, data)
