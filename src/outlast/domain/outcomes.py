"""The one place that decides the outcome of an attempt.

Everybody else reports raw facts: the node program's log what it did and why it was stopped (`Report`), the
exchange what is wrong with a delivery (`Report.delivery_error`), the scheduler what it claims to have done
with the job (`JobView`), the journal whether the attempt was cancelled (`Attempt.condemned`). The engine
decides when an attempt is over and asks here how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from outlast.domain.model import Attempt, AttemptState, Outcome, Phase, Run
from outlast.domain.observation import JobView, Report
from outlast.node.failure_streak import DATA_FAILURES, TRAINING_FAILURES
from outlast.node.protocol import (
    EXIT_BAD_ORDER,
    EXIT_NOT_CLAIMED,
    EXIT_NOT_PREPARED,
    SETUP_FAILED,
    STOP_SIGNALLED,
)

#: How much of a line of the profile is shown, in characters.
_LONGEST_LINE = 300

#: Words in the error of a training script that ran out of a GPU's memory, not out of the host's.
_GPU_MEMORY = re.compile(r"CUDA|\bHIP\b|\bXPU\b|\bMPS\b|\bGPU\b|RESOURCE_EXHAUSTED|OutOfMemoryError")


class Conclusion(NamedTuple):
    """The outcome of an attempt, and a sentence about it without a full stop."""

    outcome: Outcome
    detail: str


def of_leg(leg: Report) -> Outcome | None:
    """Return the outcome of one start of a job; None if it logged no end."""
    if leg.logged_outcome is Outcome.FINISHED and leg.delivery_error:
        return Outcome.WRONG_OUTPUT
    if leg.logged_outcome is Outcome.CONTINUE and leg.stopped_by == STOP_SIGNALLED:
        # It exited because the cluster stopped it, not at its limit: no fault if it saved nothing new.
        return Outcome.EVICTED
    return leg.logged_outcome


def detail_of(leg: Report) -> str:
    """Return the sentence that goes with `of_leg`."""
    return leg.delivery_error if of_leg(leg) is Outcome.WRONG_OUTPUT and leg.delivery_error else leg.detail


def signature_of(leg: Report) -> str | None:
    """Return the signature of the failure, which equal failures share; None if it has none."""
    if of_leg(leg) is Outcome.WRONG_OUTPUT and leg.delivery_error:
        return leg.delivery_error
    return leg.signature


def is_final(report: Report, restarts: int) -> bool:
    """Return True if the last of `restarts` + 1 starts logged its end; earlier starts do not count."""
    return report.logged_outcome is not None and len(report.legs) > restarts


def from_report(run: Run, attempt: Attempt, view: JobView | None, report: Report) -> Conclusion:
    """Decide by what the node program logged, which takes precedence over the scheduler's state."""
    outcome, detail = of_leg(report), detail_of(report)
    assert outcome is not None
    if outcome is not Outcome.FINISHED and (run.cancel_asked or attempt.cancel_sent is not None):
        cancelled = when_cancelled(run, attempt)
        if cancelled.outcome in TRAINING_FAILURES:  # the leg that failed has the best description of it
            details = (detail_of(leg) for leg in reversed(report.legs) if of_leg(leg) is cancelled.outcome)
            return Conclusion(cancelled.outcome, next(details, cancelled.detail))
        return cancelled
    if outcome is Outcome.CRASHED and view is not None and view.outcome is Outcome.OUT_OF_MEMORY:
        # The node program sees a process that was killed; only the scheduler knows for what.
        return Conclusion(Outcome.OUT_OF_MEMORY, view.reason or detail)
    if outcome is Outcome.EVICTED and view is not None and view.outcome is Outcome.CANCELLED:
        # The node program sees that it was stopped; only the scheduler knows by whom.
        return Conclusion(outcome, "%s: %s" % (view.reason, detail))
    return Conclusion(outcome, detail)


def did_nothing(view: JobView) -> bool:
    """Return True if the job ended before it could work on its attempt."""
    return view.exit_code in (EXIT_NOT_CLAIMED, EXIT_BAD_ORDER)


def of_useless_job(view: JobView) -> Conclusion:
    """Decide for a job of which `did_nothing` is true."""
    superseded = view.exit_code == EXIT_NOT_CLAIMED
    why = "another holds its claim" if superseded else "its work order was unreadable"
    return Conclusion(Outcome.LOST, "the job did nothing: " + why)


def failed_before_training(view: JobView, report: Report | None) -> bool:
    """Return True if the profile's lines failed, so that the job ended before the node program started."""
    return view.exit_code == EXIT_NOT_PREPARED and report is None


def of_failed_preparation(output: Sequence[str]) -> Conclusion:
    """Decide for a job of which `failed_before_training` is true; `output` is the end of what it printed."""
    lines = (line.partition(SETUP_FAILED)[2].strip() for line in reversed(output) if SETUP_FAILED in line)
    failed = next(lines, "")
    detail = "what the cluster's profile does before the training (modules, before, environment, container) "
    if failed:
        return Conclusion(Outcome.CRASHED, "%sfailed: %s" % (detail, failed[:_LONGEST_LINE]))
    return Conclusion(Outcome.CRASHED, detail + "failed; `outlast logs` shows which line")


def from_scheduler(view: JobView, report: Report | None) -> Conclusion:
    """Decide by the scheduler alone, for a job whose node program logged no end."""
    if view.outcome is Outcome.OVER_TIME:
        phase = report.spans[-1][0].value if report is not None and report.spans else "starting"
        return Conclusion(view.outcome, "killed at the time limit, in its phase %s" % phase)
    detail = view.reason or _by_code_and_signal(view)
    if view.outcome is not None:
        return Conclusion(view.outcome, detail)
    killed = view.signal is not None and report is not None
    return Conclusion(Outcome.EVICTED if killed else Outcome.LOST, detail)


def _by_code_and_signal(view: JobView) -> str:
    if view.signal is not None:
        return "killed without warning by signal %d" % view.signal
    code = "" if view.exit_code is None else ", with exit code %d" % view.exit_code
    return "ended without logging an outcome" + code


def of_hold(view: JobView) -> Outcome:
    """Return the outcome of an attempt whose held job is removed because no release would help."""
    return view.outcome or Outcome.NODE_TROUBLE


#: The scheduler started a job again and again, and no start saved anything.
NO_PROGRESS = Outcome.EVICTED


def when_cancelled(run: Run, attempt: Attempt) -> Conclusion:
    """Decide for an attempt whose job was cancelled by the user, or by the engine for a recorded reason."""
    if run.cancel_asked or attempt.condemned is None:
        return Conclusion(Outcome.CANCELLED, run.cancel_asked or "cancelled")
    return Conclusion(*attempt.condemned)


def when_fenced(run: Run, attempt: Attempt) -> Conclusion:
    """Decide for an attempt that no job ever claimed, and none will."""
    if attempt.cancel_sent is not None:
        return when_cancelled(run, attempt)
    if attempt.job or attempt.state is AttemptState.RUNNING:
        return Conclusion(Outcome.LOST, "the job vanished from the queue before it began")
    return Conclusion(Outcome.LOST, "the job never reached the queue")


def when_silent(attempt: Attempt) -> Conclusion:
    """Decide for a job that ran and has logged nothing since it left the queue, or since it was cancelled."""
    if attempt.missed is None and attempt.cancel_since is not None:
        host = attempt.host or "its host"
        return Conclusion(Outcome.LOST, "cancelled, but still listed: %s does not end the job" % host)
    return Conclusion(Outcome.LOST, "the job vanished from the queue without logging an outcome")


def when_gone(run: Run, attempt: Attempt, path: str) -> Conclusion:
    """Decide for an attempt whose directory is gone, with everything that its job logged and delivered."""
    if run.cancel_asked:
        return when_cancelled(run, attempt)
    return Conclusion(Outcome.LOST, "its directory %s is gone" % path)


def when_blocked(run: Run, attempt: Attempt, error: str) -> Conclusion:
    """Decide for an attempt whose files could not be read or written for too long."""
    if run.cancel_asked:
        return when_cancelled(run, attempt)
    return Conclusion(Outcome.NODE_TROUBLE, "its files cannot be read or written: %s" % error)


def is_blocked(report: Report) -> bool:
    """Return True if the node program could not use a file of the experiment, which other nodes see too."""
    return report.logged_outcome is Outcome.NODE_TROUBLE and bool(report.signature)


def saved_nothing_in_time(outcome: Outcome, legs: Sequence[Report]) -> bool:
    """Return True if a start used all of its time, and none of these starts saved anything.

    The node program must have logged it: a log that was cut may lack a save.
    """
    at_limit = any(of_leg(leg) is Outcome.OVER_TIME and _computed(leg) for leg in legs)
    return (
        outcome is Outcome.OVER_TIME
        and at_limit
        and not any(leg.changed or leg.saves or leg.made for leg in legs)
    )


def _computed(leg: Report) -> bool:
    return any(phase is Phase.COMPUTE for phase, _ in leg.spans)


def lacked_memory(outcome: Outcome, view: JobView | None, report: Report | None) -> bool:
    """Return True if the job may succeed on a host with more memory: it was not a GPU's that was used up."""
    if outcome is not Outcome.OUT_OF_MEMORY:
        return False
    from_scheduler = view is not None and view.outcome is Outcome.OUT_OF_MEMORY
    return from_scheduler or report is None or not _GPU_MEMORY.search(detail_of(report))


def is_lasting(outcome: Outcome, signature: str | None, report: Report | None = None) -> bool:
    """Return True if the next attempt would end in the same way: no pause helps."""
    if outcome is Outcome.REJECTED:
        return True  # the scheduler has the job and does not accept it
    if outcome is Outcome.WRONG_OUTPUT:
        return report is not None and report.lasting  # a number is out of its bounds
    return outcome in DATA_FAILURES and bool(signature)  # the sources respond, with the wrong content
