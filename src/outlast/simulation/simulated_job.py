"""A simulated job: what is true of it, and what the scheduler would say."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.domain.model import Cause, Outcome
from outlast.domain.observation import JobPhase, JobView
from outlast.schedulers.base import JobRequest
from outlast.simulation.simulated_node import NodeProgram

NEVER = float("inf")


@dataclass
class SimulatedJob:
    """One job as it truly is. What the listing says of it may be nothing, or old."""

    token: str
    number: str
    request: JobRequest
    #: It is in the listing from `listed` on, but not from `hidden` to `back`.
    listed: float
    hidden: float = NEVER
    back: float = NEVER
    phase: JobPhase = JobPhase.QUEUED
    host: str = ""
    #: How often it was started, when last, and how long it held a slot in the starts that are over.
    starts: int = 0
    started: float | None = None
    slot: float = 0.0
    #: How often it was put back into the queue; the one that is being evicted will be, too.
    requeues: int = 0
    requeue_pending: bool = False
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    outcome: Outcome | None = None
    reason: str = ""
    #: It was put aside; how often so far, since when, and whether it may go on as it is.
    holds: int = 0
    held: float = NEVER
    releasable: bool = False
    releases: int = 0
    cancelled: bool = False
    #: It was over, and was started again nevertheless.
    revived: bool = False
    #: Its end is in the journal, so that the scheduler need not tell of it any more.
    forgotten: bool = False
    #: When the controller last asked for its release or its end, whatever came of it.
    requested_at: float = 0.0
    #: The work of its last start.
    program: NodeProgram | None = None
    #: How many listings in a row lacked it, and whether any ever did.
    missing_listings: int = 0
    lacked: bool = False
    #: The view of its current state, made once.
    view: JobView | None = field(default=None, repr=False)

    def is_listed(self, now: float) -> bool:
        return self.listed <= now and not self.forgotten and not self.hidden <= now < self.back

    @property
    def hidden_for_good(self) -> bool:
        return self.hidden != NEVER and self.back == NEVER

    @property
    def cause(self) -> Cause:
        return self.program.cause if self.program else Cause.CLUSTER

    @property
    def computing(self) -> bool:
        """It computes as the scheduler says: neither cut off, nor started again after its end."""
        program = self.program
        if program is None or program.log.cut_off or self.revived:
            return False
        return program in program.run.computing

    def make_view(self, counts_returns: bool) -> JobView:
        """Some schedulers count a restart when the job is put back, some when it starts again."""
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
