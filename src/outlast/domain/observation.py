"""What can be seen of an attempt: the scheduler's word (JobView) and the node's (Report).

Plain values; who fetches them is in `schedulers` and `reports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.domain.model import Cause, Outcome, Phase


class JobPhase(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    #: The scheduler put it aside because something went wrong with it; it does not go on by itself.
    HELD = "held"
    ENDED = "ended"


@dataclass(frozen=True)
class JobView:
    """What the scheduler says of one job. Times are the scheduler's clock, seconds since the epoch."""

    token: str
    job: str
    phase: JobPhase
    #: Where it runs, or ran last: the word that `JobRequest.avoid` would name.
    host: str = ""
    #: When it was started, for the last time if the scheduler started it again.
    started: float | None = None
    ended: float | None = None
    #: Seconds the job held a slot, all its starts together; exact even if the clock jumped in between.
    elapsed: float | None = None
    #: Of `elapsed`, seconds in which the scheduler brought the job's input there: before the job began, and
    #: in starts that came to nothing.
    bringing: float = 0.0
    brought_in_vain: float = 0.0
    #: `elapsed` leaves out what was before this moment, of which the scheduler cannot tell; None: nothing.
    since: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    #: For ENDED and HELD: what the scheduler itself says became of it; None: nothing beyond code and signal.
    outcome: Outcome | None = None
    #: Why it waits, is held, or how it ended, as a sentence for people that ends without a full stop.
    reason: str = ""
    #: How often the scheduler has started it again (requeued, rescheduled, evicted and started elsewhere).
    restarts: int = 0
    #: For HELD: it may go on as it is once it is released.
    releasable: bool = False
    #: For HELD: what tells this from other failures, if it will be the same next time.
    lasting: str = ""
    #: For HELD: who caused it, where the scheduler shows that; None: as the outcome says.
    cause: Cause | None = None
    #: The most memory it used, in bytes, where the scheduler knows.
    memory: int | None = None


@dataclass(frozen=True)
class Patience:
    """How long this kind of scheduler may be silent about a job before that means something (seconds)."""

    #: A submission whose outcome is unknown, or a job missing from a complete listing.
    missing: float
    #: A node program that claimed its attempt and has not been heard of.
    heartbeat: float
    #: First pause after trouble of the cluster's; it doubles up to `longest_pause`.
    pause: float
    longest_pause: float = 600.0
    #: By how much the node's files may lag behind the scheduler's word; 0 on a file system of one machine.
    files: float = 0.0


@dataclass(frozen=True)
class Save:
    """A checkpoint became durable; it has what was computed in the first `offset` seconds of the training."""

    offset: float
    step: int | None


@dataclass(frozen=True)
class Saved:
    """All saves of a leg together: how many, seconds until they were durable, the most that one took."""

    times: int
    seconds: float
    slowest: float
    #: Why the last one was made, in the training's words.
    why: str = ""


@dataclass(frozen=True)
class Report:
    """What node program and training logged of one attempt. Durations are of the node's monotonic clock."""

    claimed: float | None = None
    host: str = ""
    #: When the node was last heard of (wall clock, by the modification time of its files).
    heard: float = 0.0
    #: Phases in order, with their seconds; the last one of a cut log ends at the last line.
    spans: tuple[tuple[Phase, float], ...] = ()
    outcome: Outcome | None = None
    detail: str = ""
    code: int | None = None
    signal: int | None = None
    signature: str | None = None
    tail: tuple[str, ...] = ()
    #: The step it went on from; `loaded` tells "from the start" from "never got that far".
    loaded: bool = False
    resumed: int | None = None
    #: The last saves, and the sum of all; None: it told of none.
    saves: tuple[Save, ...] = ()
    saved: Saved | None = None
    #: Seconds the training was held up by saving.
    saving: float = 0.0
    #: Something in the checkpoint directory changed.
    changed: bool = False
    delivered: Mapping[str, Any] | None = None
    #: The data it waited for, item by item (see `arrivals`).
    data: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = field(default=())
    #: The reports of the job's earlier starts, in order: it was ended from outside and started again.
    earlier: tuple[Report, ...] = ()

    @property
    def legs(self) -> tuple[Report, ...]:
        return (*self.earlier, self)

    @property
    def logged(self) -> float:
        """Seconds of this leg."""
        return sum(seconds for _, seconds in self.spans)

    @property
    def computed(self) -> bool:
        return any(phase is Phase.COMPUTE for leg in self.legs for phase, _ in leg.spans)

    @property
    def step(self) -> int | None:
        steps = [save.step for leg in self.legs for save in leg.saves if save.step is not None]
        return max(steps, default=None)

    @property
    def got_on(self) -> bool:
        return any(leg.changed or leg.saves for leg in self.legs)


@dataclass(frozen=True)
class Seen:
    """One look at the world. `jobs` is None when the scheduler did not answer: that says nothing."""

    jobs: Mapping[str, JobView] | None
    reports: Mapping[str, Report] = field(default_factory=dict)
