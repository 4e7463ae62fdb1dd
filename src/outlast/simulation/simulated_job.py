"""A simulated job: its true state, and how the scheduler lists it."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.domain.model import Cause, Outcome
from outlast.domain.observation import JobPhase, JobView
from outlast.schedulers.base import JobRequest
from outlast.simulation.simulated_node import NodeProgram

NEVER = float("inf")


@dataclass
class SimulatedJob:
    """The true state of a job. Listings may be stale or lack it."""

    token: str
    number: str
    request: JobRequest
    #: It is listed from `listed` on, except from `hidden` to `back`.
    listed: float
    hidden: float = NEVER
    back: float = NEVER
    phase: JobPhase = JobPhase.QUEUED
    host: str = ""
    #: The number of starts, the time of the last, and the slot time of the starts that are over.
    starts: int = 0
    started: float | None = None
    slot: float = 0.0
    #: The number of requeues, and whether the current eviction will be followed by one.
    requeues: int = 0
    requeue_pending: bool = False
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    outcome: Outcome | None = None
    reason: str = ""
    #: The number of holds, the start of the current one, and whether it may be released.
    holds: int = 0
    held: float = NEVER
    releasable: bool = False
    releases: int = 0
    cancelled: bool = False
    #: Its host has died, and the scheduler lists it as running.
    stuck: bool = False
    #: Started again after its end.
    revived: bool = False
    #: The journal has its end, so the scheduler need not list it.
    forgotten: bool = False
    #: When the controller last requested its release or its end, even without success.
    requested_at: float = 0.0
    #: The node program of its last start.
    program: NodeProgram | None = None
    #: The number of last listings in a row without it, and whether there ever was one.
    missing_listings: int = 0
    was_missing: bool = False
    #: The view of its current state, cached.
    view: JobView | None = field(default=None, repr=False)

    def is_listed(self, now: float) -> bool:
        """Return True if a listing made at `now` has the job."""
        return self.listed <= now and not self.forgotten and not self.hidden <= now < self.back

    @property
    def hidden_for_good(self) -> bool:
        return self.hidden != NEVER and self.back == NEVER

    @property
    def cause(self) -> Cause:
        return self.program.cause if self.program else Cause.CLUSTER

    @property
    def computing(self) -> bool:
        """True if it computes with the scheduler's knowledge: neither cut off nor started after its end."""
        program = self.program
        if program is None or program.log.cut_off or self.revived:
            return False
        return program in program.run.computing

    def make_view(self, counts_returns: bool) -> JobView:
        """Return the job as listed; with `counts_returns` a restart counts from the requeue on."""
        if self.view is None:
            over = self.phase is JobPhase.ENDED
            self.view = JobView(
                token=self.token,
                job=self.number,
                phase=self.phase,
                host=self.host,
                started=None if self.phase is JobPhase.QUEUED else self.started,
                ended=self.ended if over else None,
                elapsed=self.slot if over and self.starts else None,
                exit_code=self.exit_code if over else None,
                signal=self.signal if over else None,
                outcome=self.outcome if over or self.phase is JobPhase.HELD else None,
                reason=self.reason,
                restarts=self.requeues if counts_returns else max(0, self.starts - 1),
                releasable=self.releasable and self.phase is JobPhase.HELD,
            )
        return self.view
