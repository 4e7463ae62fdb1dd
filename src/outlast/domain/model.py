"""The domain: what is to be done (Spec), what is known (Run, Attempt), and how it may change.

Everything here is frozen, and nothing here reads a clock or a file. How an entry of the journal changes a
run or an attempt is in `fold`; which changes are possible at all is in the two tables below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Any

from outlast.domain.accounts import AttemptAccount
from outlast.node.order import OutputRule
from outlast.node.protocol import Outcome, Phase
from outlast.node.staging.item import DataItem
from outlast.node.time_limits import limits_for

__all__ = [
    "ATTEMPT_STEPS",
    "RUN_STEPS",
    "Attempt",
    "AttemptState",
    "Cause",
    "Checkpoints",
    "Ending",
    "EntryKind",
    "JournalEntry",
    "Limits",
    "Outcome",
    "OutputRule",
    "Phase",
    "Removal",
    "Resources",
    "Run",
    "RunPlan",
    "RunState",
    "Spec",
    "attempts_needed",
]


@dataclass(frozen=True)
class Resources:
    """What is asked of the cluster, in bytes and seconds; of the time, one job gets `Spec.job_time`."""

    cpus: int = 1
    gpus: int = 0
    memory: int = 2 * 10**9
    disk: int = 5 * 10**9
    time: float = 3600.0


@dataclass(frozen=True)
class Limits:
    """When to give a run up."""

    attempts: int = 50
    without_progress: int = 3
    total: float = 14 * 86400.0


@dataclass(frozen=True)
class Checkpoints:
    keep: int = 3
    grace: float = 30.0
    #: The stop signal's name without SIG: TERM, USR1 or USR2.
    signal: str = "TERM"
    #: Seconds between saves that the training makes by itself; None: it works them out, within the bounds.
    every: float | None = None
    shortest: float = 10.0
    longest: float = 3600.0


@dataclass(frozen=True)
class Spec:
    """A validated `params.yaml`, with what the submission added to it."""

    name: str
    #: As written, with `{…}` for the parameters of the sweep.
    command: str
    code: tuple[str, ...] = ()
    cluster: str = "local"
    #: The cluster's profile as it was when the runs were submitted (see `spec.clusters`).
    profile: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    #: At most this many runs at a time; None: as many as there are.
    parallel: int | None = None
    outputs: tuple[OutputRule, ...] = ()
    #: What has to be there before the training starts; `method` is the way in that was chosen.
    data: tuple[DataItem, ...] = ()
    limits: Limits = field(default_factory=Limits)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    #: Variables such as PATH, taken when the runs were submitted so that every attempt sees the same.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: SHA-256 of the archive of `code`, made when the runs were submitted; empty before that.
    code_sha256: str = ""

    @property
    def job_time(self) -> float:
        """The wall time that one job asks for: what is wanted, or the longest that the cluster allows."""
        longest: float | None = self.profile.get("longest")
        return self.resources.time if longest is None else min(self.resources.time, longest)


def attempts_needed(spec: Spec) -> int:
    """How many jobs, each used up to its limit, give the training the time that is wanted."""
    if spec.resources.time <= spec.job_time:
        return 1
    usable = limits_for(spec.job_time, spec.checkpoints.grace, began=0.0, began_epoch=0.0).stop_at
    return ceil(spec.resources.time / usable)


@dataclass(frozen=True)
class RunPlan:
    """One run as `params.yaml` asks for it. `params` holds the values as they were written."""

    name: str
    params: Mapping[str, str] = field(default_factory=dict)


class Cause(str, Enum):
    """Whose doing the end of an attempt was; this decides how patient the engine is."""

    TRAINING = "training"  # the user's code or its outputs
    LIMIT = "limit"  # the training stopped as agreed, to be continued
    CLUSTER = "cluster"  # nothing the training could help
    USER = "user"  # somebody asked for it
    ACCESS_POINT = "access-point"  # the machine that results return to; no host is avoided
    UNKNOWN = "unknown"  # outside the training, and not clear where; no host is avoided


#: Causes outside the training; each such end lengthens the pause before the next attempt.
TROUBLES = frozenset({Cause.CLUSTER, Cause.ACCESS_POINT, Cause.UNKNOWN})


CAUSES: Mapping[Outcome, Cause] = {
    Outcome.FINISHED: Cause.TRAINING,
    Outcome.CRASHED: Cause.TRAINING,
    Outcome.WRONG_OUTPUT: Cause.TRAINING,
    Outcome.OUT_OF_MEMORY: Cause.TRAINING,
    Outcome.CONTINUE: Cause.LIMIT,
    Outcome.OVER_TIME: Cause.LIMIT,
    Outcome.STALLED: Cause.CLUSTER,
    Outcome.EVICTED: Cause.CLUSTER,
    Outcome.NOT_FOUND: Cause.CLUSTER,
    Outcome.CORRUPT_INPUT: Cause.CLUSTER,
    Outcome.NETWORK: Cause.CLUSTER,
    Outcome.OUT_OF_DISK: Cause.CLUSTER,
    Outcome.NODE_TROUBLE: Cause.CLUSTER,
    Outcome.LOST: Cause.CLUSTER,
    Outcome.REJECTED: Cause.CLUSTER,
    Outcome.CANCELLED: Cause.USER,
}


class Removal(str, Enum):
    """Whether somebody removed a job at the scheduler (scancel, qdel, condor_rm)."""

    NO = "no"
    MAYBE = "maybe"  # the scheduler does not tell it from a kill on the node
    YES = "yes"


class RunState(str, Enum):
    WAITING = "waiting"  # no attempt is under way
    ACTIVE = "active"  # one attempt is under way
    ACCEPTED = "accepted"  # a result was accepted and is being published
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self in (RunState.FINISHED, RunState.FAILED, RunState.CANCELLED)


class AttemptState(str, Enum):
    INTENDED = "intended"  # committed; the scheduler may or may not have been called
    UNSURE = "unsure"  # the scheduler was called and its answer is not known
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class EntryKind(str, Enum):
    """What an entry of the journal says."""

    ADDED = "added"
    CANCEL_ASKED = "cancel-asked"
    ACCEPTED = "accepted"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"

    INTENDED = "intended"
    UNSURE = "unsure"
    QUEUED = "queued"
    STARTED = "started"
    MISSED = "missed"
    SEEN = "seen"
    WAITS = "waits"
    REQUEUED = "requeued"
    RELEASED = "released"
    CANCEL_SENT = "cancel-sent"
    ENDED = "ended"
    TWIN_FOUND = "twin-found"
    TWIN_ENDED = "twin-ended"


_RUN, _AT = RunState, AttemptState
_LIVE = (_AT.INTENDED, _AT.UNSURE, _AT.QUEUED, _AT.RUNNING)
#: Entries that tell something of an attempt and leave its state as it is.
_ALONGSIDE = (EntryKind.MISSED, EntryKind.SEEN, EntryKind.WAITS, EntryKind.RELEASED, EntryKind.CANCEL_SENT)

#: Which entry may come for a run in which state, and the state after it.
RUN_STEPS: Mapping[tuple[RunState | None, EntryKind], RunState] = {
    (None, EntryKind.ADDED): _RUN.WAITING,
    (_RUN.WAITING, EntryKind.INTENDED): _RUN.ACTIVE,
    (_RUN.ACTIVE, EntryKind.ENDED): _RUN.WAITING,
    (_RUN.WAITING, EntryKind.ACCEPTED): _RUN.ACCEPTED,
    (_RUN.ACCEPTED, EntryKind.FINISHED): _RUN.FINISHED,
    (_RUN.ACCEPTED, EntryKind.FAILED): _RUN.FAILED,
    (_RUN.WAITING, EntryKind.FAILED): _RUN.FAILED,
    (_RUN.WAITING, EntryKind.CANCELLED): _RUN.CANCELLED,
    (_RUN.WAITING, EntryKind.CANCEL_ASKED): _RUN.WAITING,
    (_RUN.ACTIVE, EntryKind.CANCEL_ASKED): _RUN.ACTIVE,
    (_RUN.FAILED, EntryKind.RETRIED): _RUN.WAITING,
    (_RUN.CANCELLED, EntryKind.RETRIED): _RUN.WAITING,
}

#: The same for an attempt.
ATTEMPT_STEPS: Mapping[tuple[AttemptState | None, EntryKind], AttemptState] = {
    (None, EntryKind.INTENDED): _AT.INTENDED,
    (_AT.INTENDED, EntryKind.UNSURE): _AT.UNSURE,
    (_AT.INTENDED, EntryKind.QUEUED): _AT.QUEUED,
    (_AT.UNSURE, EntryKind.QUEUED): _AT.QUEUED,
    (_AT.INTENDED, EntryKind.STARTED): _AT.RUNNING,
    (_AT.UNSURE, EntryKind.STARTED): _AT.RUNNING,
    (_AT.QUEUED, EntryKind.STARTED): _AT.RUNNING,
    (_AT.RUNNING, EntryKind.STARTED): _AT.RUNNING,
    (_AT.RUNNING, EntryKind.REQUEUED): _AT.QUEUED,
    (_AT.QUEUED, EntryKind.REQUEUED): _AT.QUEUED,
    **{(state, kind): state for state in _LIVE for kind in _ALONGSIDE},
    **{(state, EntryKind.ENDED): _AT.ENDED for state in _LIVE},
    (_AT.ENDED, EntryKind.TWIN_FOUND): _AT.ENDED,
    (_AT.ENDED, EntryKind.TWIN_ENDED): _AT.ENDED,
}

#: Entries that concern an attempt (and carry its token).
ATTEMPT_KINDS = frozenset(kind for _, kind in ATTEMPT_STEPS)


@dataclass(frozen=True)
class JournalEntry:
    """One row of the journal."""

    at: float
    run: str
    kind: EntryKind
    token: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, as far as the next decision needs to know."""

    number: int
    token: str
    outcome: Outcome
    detail: str
    at: float
    host: str = ""
    #: The last step it saved, and whether that (or a change in the checkpoint directory) was news.
    step: int | None = None
    progressed: bool = False
    #: The training itself was running at some time.
    computed: bool = False
    #: It may pass by itself: for a job that the scheduler refused, for data that did not arrive, and for
    #: trouble of the access point.
    transient: bool = True
    cause: Cause | None = None
    removed: Removal = Removal.NO

    @property
    def turned_back(self) -> bool:
        """It came for data that could not be had, for now: no fault of the run's, nor of the host's."""
        outage = self.outcome in (Outcome.NOT_FOUND, Outcome.NETWORK, Outcome.STALLED)
        return outage and self.transient and not self.computed


@dataclass(frozen=True)
class Run:
    """One training to be brought to its end, folded from the journal."""

    name: str
    position: int
    spec: int
    params: Mapping[str, str]
    state: RunState
    added: float
    #: When it was added or last retried; `limits` count from here.
    since: float
    reason: str = ""
    #: How many attempts there have been; the next one is this + 1.
    attempts: int = 0
    #: How many of them held a slot since `since`.
    ran: int = 0
    #: The token of the attempt that is under way.
    current: str | None = None
    cancel_asked: str = ""
    accepted: str | None = None
    last: Ending | None = None
    best_step: int | None = None
    #: In a row without progress: attempts that the training itself ended, and all starts that computed.
    stuck: int = 0
    stuck_any: int = 0
    #: The signature of the last failure of the training's own, and how often it came.
    failure: str | None = None
    failures: int = 0
    #: Troubles of the cluster's in a row; they lengthen the pause.
    troubles: int = 0
    #: Hosts where the last troubles happened, and when; newest last.
    sour_hosts: tuple[tuple[str, float], ...] = ()
    #: Seconds that the training was at work, in all attempts, and how often the cluster cut it short.
    observed: float = 0.0
    interruptions: int = 0
    #: In the last attempt that saved: how long a save held the training up, and how long the slowest took.
    save_blocked: float | None = None
    save_durable: float | None = None


@dataclass(frozen=True)
class Attempt:
    """One scheduler job of a run, folded from the journal."""

    run: str
    number: int
    token: str
    state: AttemptState
    intended: float
    #: Why it was started, in a sentence.
    reason: str = ""
    avoid: tuple[str, ...] = ()
    #: How many jobs, each waiting for the end of the one before, carry it (see `outlast chain`).
    jobs: int = 1
    job: str = ""
    host: str = ""
    queued: float | None = None
    started: float | None = None
    ended: float | None = None
    #: Since when complete listings of the scheduler's lack it.
    missed: float | None = None
    cancel_sent: float | None = None
    #: The outcome and the reason for which its job was cancelled; None: because somebody asked for it.
    condemned: tuple[Outcome, str] | None = None
    #: What tells that from other failures, if it will be the same next time.
    lasting: str = ""
    #: Who caused it, where the scheduler shows that; None: as the outcome says.
    cause: Cause | None = None
    #: How often the scheduler has started its job again.
    restarts: int = 0
    #: Why its job waits or is held, since when, and how often that has changed.
    waits: str = ""
    waits_since: float | None = None
    waits_changed: int = 0
    #: How often a held job was let go on, and when last.
    releases: int = 0
    released: float | None = None
    outcome: Outcome | None = None
    detail: str = ""
    account: AttemptAccount = AttemptAccount()  # noqa: RUF009 - frozen
    twin: bool = False
    twin_slot: float = 0.0
