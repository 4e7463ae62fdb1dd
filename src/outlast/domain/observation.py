"""Raw observations of an attempt: the scheduler's listing (JobView) and the node's log (Report).

`schedulers` and `exchange.attempt_log` make them; `outcomes` decides what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.domain import untrusted
from outlast.domain.accounts import ItemAccount, Save, Saved
from outlast.domain.model import Cause, Outcome, Phase, Removal

__all__ = ["JobPhase", "JobView", "Observations", "Patience", "Removal", "Report", "Save", "Saved"]


class JobPhase(Enum):
    """The phase of a job, according to its scheduler."""

    QUEUED = "queued"
    RUNNING = "running"
    #: The scheduler put it aside because of an error; it does not start again by itself.
    HELD = "held"
    ENDED = "ended"


@dataclass(frozen=True)
class JobView:
    """A job as the scheduler lists it. Times are the scheduler's clock, seconds since the epoch."""

    token: str
    job: str
    phase: JobPhase
    #: Where it runs, or ran last: the name that `JobRequest.avoid` would use. Sites choose their names: one
    #: that could be more than a name in a request is left out.
    host: str = ""
    #: When it was started, for the last time if the scheduler started it again.
    started: float | None = None
    ended: float | None = None
    #: Seconds the job held a slot, all its starts together; exact even if the clock jumped in between.
    elapsed: float | None = None
    #: Of `elapsed`, seconds in which the scheduler transferred the job's input: before the job began, and
    #: for starts that failed.
    bringing: float = 0.0
    brought_in_vain: float = 0.0
    #: `elapsed` leaves out what was before this moment, which the scheduler no longer knows; None: nothing.
    since: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    #: For ENDED and HELD: the outcome that the scheduler claims; None: only exit code and signal are known.
    outcome: Outcome | None = None
    #: For ENDED: whether somebody removed it at the scheduler.
    removed: Removal = Removal.NO
    #: Why it waits, is held, or how it ended: a sentence without a full stop.
    reason: str = ""
    #: How often the scheduler has started it again (requeued, rescheduled, evicted and started elsewhere).
    restarts: int = 0
    #: For HELD: it may continue unchanged once it is released.
    releasable: bool = False
    #: For HELD: the signature of a failure that the next start would meet again.
    lasting: str = ""
    #: For HELD: who caused it, where the scheduler shows that; None: `CAUSES` has it.
    cause: Cause | None = None
    #: The most memory it used, in bytes, where the scheduler knows.
    memory: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", untrusted.host(self.host))


@dataclass(frozen=True)
class Patience:
    """Seconds to wait for a kind of scheduler: for news of a job, and between retries."""

    #: A submission whose outcome is unknown, or a job missing from a complete listing.
    missing: float
    #: A node program that claimed its attempt and has logged nothing since.
    heartbeat: float
    #: First pause after an error of the cluster; it doubles up to `longest_pause`.
    pause: float
    longest_pause: float = 600.0
    #: By how much the node's files may lag behind the scheduler's listing; 0 on one machine.
    files: float = 0.0


@dataclass(frozen=True)
class Report:
    """The record of a leg, from its logs. Durations are by the node's monotonic clock."""

    claimed: float | None = None
    host: str = ""
    #: When the node last wrote to its files (wall clock).
    last_logged: float = 0.0
    #: Phases in order, with their seconds; the last one of a cut log ends at the last line.
    spans: tuple[tuple[Phase, float], ...] = ()
    #: The outcome as the node program logged it, which `outcomes` may overrule; None: it logged no end.
    logged_outcome: Outcome | None = None
    #: Why the training was stopped, as logged (see `protocol.STOP_SIGNALLED`); empty: it was not.
    stopped_by: str = ""
    #: What is wrong with the delivered files, seen from this side of the file system; empty: nothing.
    delivery_error: str = ""
    detail: str = ""
    code: int | None = None
    signal: int | None = None
    signature: str | None = None
    #: Another attempt would fail in the same way, as logged.
    lasting: bool = False
    tail: tuple[str, ...] = ()
    #: A checkpoint was searched for; `resumed` is its step, None: there was none.
    loaded: bool = False
    resumed: int | None = None
    #: The last saves, and the sum of all; None: it logged none.
    saves: tuple[Save, ...] = ()
    saved: Saved | None = None
    #: Seconds that the training waited for saves.
    saving: float = 0.0
    #: What the training used: seconds of CPU time, the most bytes of memory, the share of the time in which
    #: its GPUs were busy; None: not measured.
    cpu: float | None = None
    resident: int | None = None
    gpu: float | None = None
    #: Something in the checkpoint directory changed.
    changed: bool = False
    #: A model or checkpoint in the working directory is new or was changed, and is kept for the next attempt.
    made: bool = False
    #: It read nothing of what earlier attempts had saved, and wrote the same files anew.
    started_over: bool = False
    #: The files of the delivery; None if there is none, or if they are too many to be listed.
    delivered: Mapping[str, Any] | None = None
    #: The number of its files, and their bytes; None if no delivery was logged, or by an older version.
    delivered_total: tuple[int, int] | None = None
    #: The data it waited for.
    data: tuple[ItemAccount, ...] = ()
    notes: tuple[str, ...] = field(default=())
    #: As in `Ending`: the snapshot that it began from and may have failed on.
    go_back: int | None = None
    unsure: bool = False
    #: The reports of the job's earlier starts, in order.
    earlier: tuple[Report, ...] = ()

    @property
    def legs(self) -> tuple[Report, ...]:
        """All starts of the job, this one last."""
        return (*self.earlier, self)

    @property
    def logged(self) -> float:
        """Seconds that this leg logged."""
        return sum(seconds for _, seconds in self.spans)

    @property
    def computed(self) -> bool:
        """True if any start got as far as the training."""
        return any(phase is Phase.COMPUTE for leg in self.legs for phase, _ in leg.spans)

    @property
    def step(self) -> int | None:
        """The newest step that any start saved."""
        steps = [save.step for leg in self.legs for save in leg.saves if save.step is not None]
        return max(steps, default=None)

    @property
    def progressed(self) -> bool:
        """True if any start left something new that the next one may resume from."""
        return any(leg.changed or leg.saves or leg.made for leg in self.legs)


@dataclass(frozen=True)
class Observations:
    """The observations of one pass. `jobs` is None if the scheduler did not respond: nothing is known."""

    jobs: Mapping[str, JobView] | None
    reports: Mapping[str, Report] = field(default_factory=dict)
    #: By token: the directory of an attempt that is gone.
    gone: Mapping[str, str] = field(default_factory=dict)
    #: By token: the last lines of the output of a job that ended before the node program started.
    output: Mapping[str, Sequence[str]] = field(default_factory=dict)
