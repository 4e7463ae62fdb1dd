"""The log of a simulated node program, and the report that can be read from it at a given time."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.domain.model import Outcome, Phase
from outlast.domain.observation import Report, Save
from outlast.exchange.attempt_log import MOST_SAVES
from outlast.simulation.simulated_checkpoints import LegKey

#: Seconds between heartbeats of the node program while the training computes.
HEARTBEAT = 15.0


@dataclass
class NodeLog:
    """The lines that were written on the node, with true times. Phases may be appended before they begin."""

    host: str
    skew: float
    began: float
    reports_steps: bool
    save_seconds: float
    phases: list[tuple[Phase, float]]
    saves: list[tuple[float, int]] = field(default_factory=list)
    loaded: float | None = None
    resumed: int | None = None
    #: The leg whose checkpoint it resumed from.
    resumed_from: LegKey | None = None
    #: The scheduler considers it dead, and signals do not reach it.
    cut_off: bool = False
    ended: float | None = None
    outcome: Outcome | None = None
    detail: str = ""
    signature: str | None = None
    #: Nothing was written after this time.
    closed: float = float("inf")

    def report(self, as_of: float) -> Report | None:
        """Return what `exchange.attempt_log` would read from the files as they were at `as_of`."""
        as_of = min(as_of, self.closed)
        begun = [(phase, at) for phase, at in self.phases if at <= as_of]
        if not begun:
            return None
        compute = self.compute_began
        over = self.ended is not None and self.ended <= as_of
        last = begun[-1][1]
        if over:
            last = self.ended or last
        elif begun[-1][0] is Phase.COMPUTE:
            last += HEARTBEAT * ((as_of - last) // HEARTBEAT)
            last = max([last, *(at for at, _ in self.saves if at <= as_of)])
        ends = [at for _, at in begun[1:]] + [last]
        spans = tuple((phase, end - at) for (phase, at), end in zip(begun, ends, strict=True))
        known = [save for save in self.saves if save[0] <= as_of]
        saves = [Save(at - (compute or at), step if self.reports_steps else None) for at, step in known]
        loaded = self.reports_steps and self.loaded is not None and self.loaded <= as_of
        return Report(
            claimed=self.began + self.skew,
            host=self.host,
            last_logged=last + self.skew,
            spans=spans,
            logged_outcome=self.outcome if over else None,
            detail=self.detail if over else "",
            signature=self.signature if over else None,
            loaded=loaded,
            resumed=self.resumed if loaded else None,
            saves=tuple(saves[-MOST_SAVES:]),
            saving=self.save_seconds * len(saves) if self.reports_steps else 0.0,
            changed=bool(saves),
        )

    @property
    def compute_began(self) -> float | None:
        return next((at for phase, at in self.phases if phase is Phase.COMPUTE), None)
