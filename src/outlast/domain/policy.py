"""The policy: the table outcome → action, and the limits after which a run fails.

After errors of the cluster the next attempt waits, longer each time. A failure of the training itself is
retried once, because some failures are random; the same failure twice fails the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from outlast.domain.alike_failures import key_of
from outlast.domain.model import Cause, Ending, Limits, Outcome, Removal, Run
from outlast.domain.observation import Patience
from outlast.node.failure_streak import TRAINING_FAILURES, FailureStreak
from outlast.text import counted
from outlast.units import show_limit, show_size

#: For starts that the cluster ended, `limits.without_progress` is multiplied by this.
CLUSTER_PATIENCE = 3


class Action(Enum):
    """The next step for a run between two attempts."""

    ACCEPT = "accept"  # its results are the results of the run
    CONTINUE = "continue"  # the next attempt at once
    RETRY_ONCE = "retry once"  # the next attempt at once; the same failure again fails the run
    PAUSE = "pause"  # the next attempt after a pause
    HOLD = "hold"  # no attempt until the user resumes the run
    FAIL = "fail"


POLICY: Mapping[Outcome, Action] = {
    Outcome.FINISHED: Action.ACCEPT,
    Outcome.CONTINUE: Action.CONTINUE,
    Outcome.OVER_TIME: Action.CONTINUE,
    Outcome.EVICTED: Action.CONTINUE,
    Outcome.CANCELLED: Action.CONTINUE,
    Outcome.CRASHED: Action.RETRY_ONCE,
    Outcome.WRONG_OUTPUT: Action.RETRY_ONCE,
    Outcome.OUT_OF_MEMORY: Action.RETRY_ONCE,
    Outcome.OUT_OF_DISK: Action.PAUSE,
    Outcome.NODE_TROUBLE: Action.PAUSE,
    Outcome.STALLED: Action.PAUSE,
    Outcome.NETWORK: Action.PAUSE,
    Outcome.NOT_FOUND: Action.PAUSE,
    Outcome.CORRUPT_INPUT: Action.PAUSE,
    Outcome.LOST: Action.PAUSE,
    Outcome.REJECTED: Action.PAUSE,
}


_ONLY_CANCEL = "only `outlast cancel` ends a run"
_GO_BACK = "its checkpoint may be damaged: starting from the snapshot before number %d"
_IF_REMOVED = " (if somebody removed the job: %s)" % _ONLY_CANCEL


@dataclass(frozen=True)
class Verdict:
    """The next action for a run, and why: what happened, and what follows from it."""

    action: Action
    happened: str
    #: Empty if `happened` is sufficient.
    decided: str = ""
    #: For PAUSE: not before this time.
    due: float = 0.0
    #: The next attempt starts from the newest snapshot with a lower number; None: from the checkpoints.
    start_before: int | None = None
    #: For FAIL: what the failure has in common with those of other runs, if the training caused it.
    alike: str = ""

    @property
    def reason(self) -> str:
        """Both parts as one sentence."""
        return "%s; %s" % (self.happened, self.decided) if self.decided else self.happened


def judge(run: Run, limits: Limits, patience: Patience, now: float) -> Verdict:
    """Return the next action for a run that has no current attempt, and why."""
    last = run.last
    if last is None:
        overdue = _overdue(run, limits, now)
        return Verdict(Action.FAIL, overdue) if overdue else Verdict(Action.CONTINUE, _beginning(run))
    action = POLICY[last.outcome]
    if action is Action.ACCEPT:
        return Verdict(action, "attempt %d finished and its outputs passed their checks" % last.number)
    hopeless = _hopeless(run, last, limits, patience, now)
    if hopeless:
        return Verdict(Action.FAIL, hopeless, alike=_alike(run, last, limits))
    if last.removed is Removal.OTHER and not last.resumed:
        return Verdict(Action.HOLD, _removed_by_another(last))
    happened, decided = _what_happened(run, last, limits), _what_follows(last)
    if _goes_back(run, last, limits):
        return Verdict(action, happened, _GO_BACK % last.go_back, start_before=last.go_back)
    if action is Action.PAUSE:
        pause = min(patience.longest_pause, patience.pause * 2.0 ** min(run.troubles - 1, 30))
        # A clock that was set back must not stretch the pause.
        due = last.at + pause if now >= last.at else now
        return Verdict(action, happened, decided, due)
    return Verdict(action, happened, decided)


def _removed_by_another(last: Ending) -> str:
    return (
        "another user, perhaps an administrator, removed the job of attempt %d (%s). Ask why; then `outlast "
        "resume` continues" % (last.number, last.detail)
    )


def _beginning(run: Run) -> str:
    return "first attempt" if run.attempts == 0 else "retry, as requested"


def _overdue(run: Run, limits: Limits, now: float) -> str:
    if now - run.since > limits.total:
        return "not finished within limits.total (%s)" % show_limit(limits.total)
    return ""


def _hopeless(run: Run, last: Ending, limits: Limits, patience: Patience, now: float) -> str:
    """Return why another attempt would be useless; empty if it would not."""
    if run.blocked_since is not None and last.at - run.blocked_since >= patience.longest_pause:
        return "%s. Repair this, then `outlast retry %s`" % (last.detail, run.name)
    outage = limits.outage
    if outage is not None and run.outage_since is not None and last.at - run.outage_since >= outage:
        return "its data was not available for %s; the last: %s" % (show_limit(outage), last.detail)
    if last.cause is Cause.ACCESS_POINT and not last.transient:
        repair = "Another site would fail too: repair this, then `outlast retry %s`" % run.name
        return "%s. %s" % (last.detail, repair)
    if last.outcome is Outcome.REJECTED and not last.transient:
        return "the scheduler refused the job: %s" % last.detail
    if last.outcome is Outcome.WRONG_OUTPUT and not last.transient:
        return last.detail
    goes_back = _goes_back(run, last, limits)
    if FailureStreak(run.failure, run.failures).stops_after(last.outcome) and not goes_back:
        memory = run.memory if last.lacked_memory else None
        with_memory = " (with %s of memory)" % show_size(memory) if memory else ""
        return "the same failure twice%s: %s" % (with_memory, last.detail)
    if last.unsaved and not limits.start_over:
        return (_never_resumes if last.started_over else nothing_saved)(run.name, last.number)
    if run.stuck >= limits.without_progress and not goes_back:
        return (
            "%s in a row brought nothing new into $OUTLAST_CHECKPOINT_DIR; the last: %s. Save more "
            "often, or raise resources.time, then `outlast retry`"
            % (counted(run.stuck, "attempt"), last.detail)
        )
    if run.stuck_any >= CLUSTER_PATIENCE * limits.without_progress:
        return "%s in a row were ended by the cluster before they saved anything; the last: %s" % (
            counted(run.stuck_any, "start"),
            last.detail,
        )
    if run.ran >= limits.attempts:
        return "not finished after %s (limits.attempts); the last: %s" % (
            counted(run.ran, "attempt"),
            last.detail,
        )
    return _overdue(run, limits, now)


def _goes_back(run: Run, last: Ending, limits: Limits) -> bool:
    """Return True if the next attempt starts from an older state of the checkpoints than the last one did.

    A crash may be random: at once only if the state was found after a kill, else where the run would fail.
    """
    if last.go_back is None or POLICY[last.outcome] is not Action.RETRY_ONCE:
        return False
    failing = FailureStreak(run.failure, run.failures).is_hopeless or run.stuck >= limits.without_progress
    return last.unsure or failing


def nothing_saved(run: str, number: int) -> str:
    """Return why a run stops that has nothing to resume from, and what to type."""
    return (
        "attempt %d used all of its time and saved nothing in $OUTLAST_CHECKPOINT_DIR, so the next one "
        "would start from the beginning. Save checkpoints there, or raise resources.time, or allow it with "
        "`limits: {start_over: yes}`; then `outlast retry %s`" % (number, run)
    )


def _never_resumes(run: str, number: int) -> str:
    """Return why a run stops whose script starts from the beginning every time, and what to type."""
    return (
        "attempt %d used all of its time and started from the beginning: it did not read what an earlier "
        "one had saved. Make the script read it (`checkpoints: {resume: ...}` adds words to its command), or "
        "raise resources.time, or allow it with `limits: {start_over: yes}`; then `outlast retry %s`"
        % (number, run)
    )


def _alike(run: Run, last: Ending, limits: Limits) -> str:
    """Return what a run that fails has in common with others that fail for the same bug; empty: nothing."""
    if last.outcome in TRAINING_FAILURES and FailureStreak(run.failure, run.failures).is_hopeless:
        return key_of(last.outcome, run.failure)
    if last.unsaved or run.stuck >= limits.without_progress:
        return "nothing saved"
    return ""


def _what_happened(run: Run, last: Ending, limits: Limits) -> str:
    text = "attempt %d ended as %s" % (last.number, last.outcome.value)
    if last.host:
        text += " on %s" % last.host
    if last.progressed and last.step is not None:
        text += " with step %d saved" % last.step
    elif last.progressed:
        text += " with a new checkpoint"
    elif last.computed and run.stuck:
        text += " without progress (%d of %d)" % (run.stuck, limits.without_progress)
    return text


def _what_follows(last: Ending) -> str:
    match POLICY[last.outcome]:
        case Action.CONTINUE if last.resumed:
            return "continue, as requested"
        case Action.CONTINUE if last.withdrawn:
            return "it begins again"
        case Action.CONTINUE if last.outcome is Outcome.CANCELLED or last.removed is Removal.YES:
            return "it was removed at the scheduler, and the run continues: %s" % _ONLY_CANCEL
        case Action.CONTINUE if last.unsaved:
            return "starting from the beginning: nothing was %s" % ("read" if last.started_over else "saved")
        case Action.CONTINUE:
            return "continue" + (_IF_REMOVED if last.removed is Removal.MAYBE else "")
        case Action.RETRY_ONCE:
            return "retrying once; an identical failure will fail the run"
        case _:
            unseen = last.outcome is Outcome.LOST and not last.computed and last.cause is not Cause.UNKNOWN
            return "retrying after a pause" + (_IF_REMOVED if unseen else "")
