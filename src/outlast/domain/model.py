"""The data model: what to do (Spec), what is known (Run, Attempt), and which changes are possible.

All classes are frozen. The two tables below list the possible state changes; `fold` applies an entry of the
journal to a run and an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Any

from outlast.domain.accounts import AttemptAccount
from outlast.node.output_rule import OutputRule
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
    """The resources of a run, in bytes and seconds; each job requests `Spec.job_time` of `time`."""

    cpus: int = 1
    gpus: int = 0
    memory: int = 2 * 10**9
    disk: int = 5 * 10**9
    time: float = 3600.0


@dataclass(frozen=True)
class Limits:
    """The limits after which a run fails: attempts, attempts in a row without progress, seconds in total."""

    attempts: int = 50
    without_progress: int = 3
    total: float = 14 * 86400.0
    #: A run that used all of an attempt's time and has nothing saved may start from the beginning.
    start_over: bool = False
    #: The most that an attempt requests after one ran out of it; None: see `resource_requests`.
    memory: int | None = None
    disk: int | None = None
    time: float | None = None
    #: Runs that failed alike hold back those that have not begun.
    hold_back: bool = True
    #: Seconds in which data is temporarily unavailable in a row; None: only `total` limits them.
    outage: float | None = None


@dataclass(frozen=True)
class Checkpoints:
    """The settings under `checkpoints` in `params.yaml`, in seconds."""

    keep: int = 3
    #: Between the stop signal and the kill.
    grace: float = 30.0
    #: The stop signal's name without SIG: TERM, USR1 or USR2.
    signal: str = "TERM"
    #: Between periodic saves; None: computed from the cost of a save, from `shortest` to `longest`.
    every: float | None = None
    shortest: float = 10.0
    longest: float = 3600.0
    #: Of checkpoints that the script writes by itself: how many snapshots are kept, and their bytes together.
    snapshots: int = 2
    snapshot_size: int = 20 * 10**9
    #: Words that are added to the command if there is something to resume from.
    resume: str = ""


@dataclass(frozen=True)
class Spec:
    """A validated `params.yaml`, completed at submission with profile, environment and code archive."""

    name: str
    #: As written, with `{…}` placeholders for the parameters of the sweep.
    command: str
    code: tuple[str, ...] = ()
    cluster: str = "local"
    #: The cluster's profile at the time of submission (see `schedulers.profile`).
    profile: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    #: The most runs that are active at the same time; None: no limit.
    parallel: int | None = None
    outputs: tuple[OutputRule, ...] = ()
    #: The most bytes of files that no rule in `outputs` names and that are kept nevertheless.
    other_outputs: int = 2 * 10**9
    #: Data to stage before the training starts; `method` is how each item is brought in.
    data: tuple[DataItem, ...] = ()
    limits: Limits = field(default_factory=Limits)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    #: Variables such as PATH, copied at submission so that all attempts have the same ones.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Variables under `env` in `params.yaml`, and for secrets the files with their values.
    env: Mapping[str, str] = field(default_factory=dict)
    env_files: Mapping[str, str] = field(default_factory=dict)
    #: SHA-256 of the archive of `code`, which is built at submission; empty before that.
    code_sha256: str = ""

    @property
    def job_time(self) -> float:
        """The wall time that one job requests, in seconds: `resources.time` or the limit of the cluster."""
        longest: float | None = self.profile.get("longest")
        return self.resources.time if longest is None else min(self.resources.time, longest)


def attempts_needed(spec: Spec) -> int:
    """Return how many jobs, each running up to its limit, add up to `resources.time`."""
    if spec.resources.time <= spec.job_time:
        return 1
    usable = limits_for(spec.job_time, spec.checkpoints.grace, began=0.0, began_epoch=0.0).stop_at
    return ceil(spec.resources.time / usable)


@dataclass(frozen=True)
class RunPlan:
    """A run that `params.yaml` defines. `params` holds the values as they were written."""

    name: str
    params: Mapping[str, str] = field(default_factory=dict)


class Cause(str, Enum):
    """The cause of the end of an attempt. The engine is more patient with causes outside the training."""

    TRAINING = "training"  # the user's code or its outputs
    LIMIT = "limit"  # the time limit; the next attempt continues
    CLUSTER = "cluster"  # the host, the scheduler or a data source
    USER = "user"  # a user cancelled it
    ACCESS_POINT = "access-point"  # the machine that results return to; no host is avoided
    UNKNOWN = "unknown"  # outside the training, but it is unclear where; no host is avoided


#: Causes outside the training; each such end lengthens the pause before the next attempt.
OUTSIDE_CAUSES = frozenset({Cause.CLUSTER, Cause.ACCESS_POINT, Cause.UNKNOWN})


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
    """The certainty that a user removed a job at the scheduler (scancel, qdel, condor_rm)."""

    NO = "no"
    MAYBE = "maybe"  # the scheduler cannot distinguish it from a kill on the node
    YES = "yes"
    OTHER = "other"  # another user than the owner of the job did: an administrator


class RunState(str, Enum):
    """The state of a run."""

    WAITING = "waiting"  # it has no current attempt
    HELD_BACK = "held-back"  # until the user decides: others failed alike, or its job was removed by another
    ACTIVE = "active"  # it has a current attempt
    ACCEPTED = "accepted"  # a result was accepted and is being published
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """True in the three final states."""
        return self in _OVER


_OVER = frozenset({RunState.FINISHED, RunState.FAILED, RunState.CANCELLED})


class AttemptState(str, Enum):
    """The state of an attempt."""

    INTENDED = "intended"  # committed; the scheduler may or may not have been called
    UNSURE = "unsure"  # the scheduler was called, and whether it accepted the job is unknown
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class EntryKind(str, Enum):
    """The event that an entry of the journal records."""

    ADDED = "added"
    CANCEL_ASKED = "cancel-asked"
    ACCEPTED = "accepted"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    HELD_BACK = "held-back"
    RESUMED = "resumed"

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
    BLOCKED = "blocked"
    ENDED = "ended"
    TWIN_FOUND = "twin-found"
    TWIN_ENDED = "twin-ended"


_RUN, _AT = RunState, AttemptState
_LIVE = (_AT.INTENDED, _AT.UNSURE, _AT.QUEUED, _AT.RUNNING)
#: Entries that add a fact about an attempt and do not change its state.
_ALONGSIDE = (
    *(EntryKind.MISSED, EntryKind.SEEN, EntryKind.WAITS, EntryKind.RELEASED, EntryKind.CANCEL_SENT),
    EntryKind.BLOCKED,
)

#: The state of a run after an entry, by the state before it; pairs that are missing here are impossible.
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
    # For a result that cannot be published; else the run finishes in the next pass.
    (_RUN.ACCEPTED, EntryKind.CANCEL_ASKED): _RUN.ACCEPTED,
    (_RUN.ACCEPTED, EntryKind.CANCELLED): _RUN.CANCELLED,
    (_RUN.FAILED, EntryKind.RETRIED): _RUN.WAITING,
    (_RUN.CANCELLED, EntryKind.RETRIED): _RUN.WAITING,
    # The user takes a result that failed its checks (`outlast accept`).
    (_RUN.FAILED, EntryKind.ACCEPTED): _RUN.ACCEPTED,
    (_RUN.WAITING, EntryKind.HELD_BACK): _RUN.HELD_BACK,
    (_RUN.HELD_BACK, EntryKind.RESUMED): _RUN.WAITING,
    (_RUN.HELD_BACK, EntryKind.RETRIED): _RUN.WAITING,
    (_RUN.HELD_BACK, EntryKind.CANCEL_ASKED): _RUN.HELD_BACK,
    (_RUN.HELD_BACK, EntryKind.CANCELLED): _RUN.CANCELLED,
    # It has not begun, and failures before this moment do not hold it back.
    (_RUN.WAITING, EntryKind.RESUMED): _RUN.WAITING,
    (_RUN.ACTIVE, EntryKind.RESUMED): _RUN.ACTIVE,
    # The user asks for another result (`outlast retry --again`); the earlier one is kept.
    (_RUN.FINISHED, EntryKind.RETRIED): _RUN.WAITING,
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
    (_AT.ENDED, EntryKind.BLOCKED): _AT.ENDED,  # its result cannot be published
    (_AT.ENDED, EntryKind.TWIN_FOUND): _AT.ENDED,
    (_AT.ENDED, EntryKind.TWIN_ENDED): _AT.ENDED,
}

#: Entries about an attempt; they carry its token.
ATTEMPT_KINDS = frozenset(kind for _, kind in ATTEMPT_STEPS)


@dataclass(frozen=True)
class JournalEntry:
    """An entry of the journal: an event of a run or of one of its attempts."""

    at: float
    run: str
    kind: EntryKind
    token: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """The end of an attempt, as far as the next decision depends on it."""

    number: int
    token: str
    outcome: Outcome
    detail: str
    at: float
    host: str = ""
    #: The last step that it saved. `progressed`: that step, or a changed checkpoint directory, is progress.
    step: int | None = None
    progressed: bool = False
    #: Its job got as far as the training.
    computed: bool = False
    #: A retry may succeed. Set for rejected jobs, data that was not fetched, errors of the access point, and
    #: outputs with a number out of its bounds.
    transient: bool = True
    cause: Cause | None = None
    removed: Removal = Removal.NO
    #: It may have failed on the checkpoint it began from: the next attempt can begin before this snapshot.
    go_back: int | None = None
    #: That checkpoint was found after a kill, and could not be checked.
    unsure: bool = False
    #: The user continued the run after another user had removed its job.
    resumed: bool = False
    #: The engine cancelled its job before it began, because its run is held back.
    withdrawn: bool = False
    #: It used all of its time, and the next one would start from the beginning: nothing was ever saved, or it
    #: has `started_over` without reading what was.
    unsaved: bool = False
    started_over: bool = False
    #: More memory on the host would have helped; the most that it used, in bytes, if that is known.
    lacked_memory: bool = False
    peak: int | None = None

    @property
    def turned_back(self) -> bool:
        """True if its data was temporarily unavailable: neither the run nor the host is at fault."""
        outage = self.outcome in (Outcome.NOT_FOUND, Outcome.NETWORK, Outcome.STALLED)
        return outage and self.transient and not self.computed


@dataclass(frozen=True)
class Run:
    """The state of one run, folded from the journal. Its field names are stored in the journal."""

    name: str
    position: int
    spec: int
    params: Mapping[str, str]
    state: RunState
    added: float
    #: When it was added or last retried; `limits` are counted from then on.
    since: float
    reason: str = ""
    #: The number of its newest attempt.
    attempts: int = 0
    #: Attempts after `since` that held a slot.
    ran: int = 0
    #: The token of the current attempt.
    current: str | None = None
    cancel_asked: str = ""
    accepted: str | None = None
    #: The attempts whose results were accepted before the user asked for another one.
    accepted_before: tuple[str, ...] = ()
    #: It ended with an accepted result that could not be published.
    unpublished: bool = False
    last: Ending | None = None
    best_step: int | None = None
    #: In a row without progress: attempts that the training or its limit ended, and all starts that computed.
    stuck: int = 0
    stuck_any: int = 0
    #: The signature of the last failure of the training, and how often in a row it occurred.
    failure: str | None = None
    failures: int = 0
    #: Attempts in a row that ended for a cause outside the training; each one lengthens the pause.
    troubles: int = 0
    #: When the first attempt ended of those in a row whose files could not be read or written.
    blocked_since: float | None = None
    #: The same of those in a row whose data was temporarily unavailable.
    outage_since: float | None = None
    #: The hosts that caused attempts to fail, and when; newest last.
    sour_hosts: tuple[tuple[str, float], ...] = ()
    #: Seconds that the training computed, in all attempts, and how often the cluster interrupted it.
    observed: float = 0.0
    interruptions: int = 0
    #: Of the last attempt that saved: mean seconds that a save blocked the training, and the slowest save.
    save_blocked: float | None = None
    save_durable: float | None = None
    #: An attempt has saved something that the next one can resume from.
    saved: bool = False
    #: What its newest attempt requested, where that is more than `Spec.resources`.
    memory: int | None = None
    disk: int | None = None
    time: float | None = None
    #: For a failed run: what its failure has in common with those of other runs; empty: nothing.
    alike: str = ""


@dataclass(frozen=True)
class Attempt:
    """The state of one attempt, folded from the journal. Its field names are stored in the journal."""

    run: str
    number: int
    token: str
    state: AttemptState
    intended: float
    #: Why it was started, as a sentence.
    reason: str = ""
    avoid: tuple[str, ...] = ()
    #: It starts from the newest snapshot with a lower number; None: from the checkpoints as they are.
    start_before: int | None = None
    #: The length of its chain: jobs that each wait for the end of the one before (see `outlast chain`).
    jobs: int = 1
    #: What it requested, where that is more than `Spec.resources`.
    memory: int | None = None
    disk: int | None = None
    time: float | None = None
    #: The CPUs and GPUs that it requested; None: recorded by an earlier version.
    cpus: int | None = None
    gpus: int | None = None
    job: str = ""
    host: str = ""
    queued: float | None = None
    started: float | None = None
    ended: float | None = None
    #: Since when its job is missing from complete listings of the scheduler.
    missed: float | None = None
    #: When the cancellation of its job was sent last, and first, and how often.
    cancel_sent: float | None = None
    cancel_since: float | None = None
    cancels: int = 0
    #: The outcome and the reason for which the engine cancelled its job; None: not cancelled, or by the user.
    condemned: tuple[Outcome, str] | None = None
    #: The signature of that failure, if the next attempt would meet it again.
    lasting: str = ""
    #: Who caused it, if the scheduler shows that; None: `CAUSES` has it.
    cause: Cause | None = None
    #: How often the scheduler has restarted its job.
    restarts: int = 0
    #: Why its job waits or is held, since when, and how often the reason has changed.
    waits: str = ""
    waits_since: float | None = None
    waits_changed: int = 0
    #: How often its held job was released, and when last.
    releases: int = 0
    released: float | None = None
    #: Why its files cannot be read or written, so that it cannot be ended or published, and since when.
    blocked: str = ""
    blocked_since: float | None = None
    outcome: Outcome | None = None
    detail: str = ""
    account: AttemptAccount = AttemptAccount()  # noqa: RUF009 - frozen
    #: A job of this attempt turned up after its end and is being cancelled; seconds of slots of such jobs.
    twin: bool = False
    twin_slot: float = 0.0
