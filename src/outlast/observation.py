"""What can be seen of an attempt: the scheduler's word (JobView) and the node's (Report).

Plain values; who fetches them is in `schedulers` and `reports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.model import Outcome, Phase


class JobPhase(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class JobView:
    """What the scheduler says of one job. Times are the scheduler's clock, seconds since the epoch."""

    token: str
    job: str
    phase: JobPhase
    host: str = ""
    started: float | None = None
    ended: float | None = None
    #: Seconds the job held its slot; exact even if the clock jumped in between.
    elapsed: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    #: The scheduler ended it at its wall-time limit.
    over_time: bool = False
    #: Why it waits or how it ended, as a sentence for people.
    reason: str = ""


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
    """A checkpoint became durable, `offset` seconds after the training was started."""

    offset: float
    step: int | None


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
    saves: tuple[Save, ...] = ()
    #: Seconds the training was held up by saving.
    saving: float = 0.0
    #: Something in the checkpoint directory changed.
    changed: bool = False
    delivered: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def computed(self) -> bool:
        return any(phase is Phase.COMPUTE for phase, _ in self.spans)

    @property
    def step(self) -> int | None:
        return max((save.step for save in self.saves if save.step is not None), default=None)


@dataclass(frozen=True)
class Seen:
    """One look at the world. `jobs` is None when the scheduler did not answer: that says nothing."""

    jobs: Mapping[str, JobView] | None
    reports: Mapping[str, Report] = field(default_factory=dict)
