"""What saving did and what it cost: in an attempt, in a run, in all. Pure.

A training that saves by itself decides from this how often; `explain` and `report` show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.domain.model import Outcome, Phase
from outlast.node.earlier_starts import was_interruption


@dataclass(frozen=True)
class SaveCosts:
    """All in seconds, but for the two counts."""

    saves: int = 0
    #: How long the training waited for them, and how long they took until they were durable.
    blocked: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0
    #: How long it was at work, and how often the cluster cut it short.
    computed: float = 0.0
    interruptions: int = 0
    #: Why the last one was made: how often, and what that follows from.
    why: str = ""

    @property
    def share(self) -> float:
        """Of the time at work, what went into waiting for saves."""
        return self.blocked / self.computed if self.computed else 0.0

    def __add__(self, later: SaveCosts) -> SaveCosts:
        return SaveCosts(
            self.saves + later.saves,
            self.blocked + later.blocked,
            self.seconds + later.seconds,
            max(self.slowest, later.slowest),
            self.computed + later.computed,
            self.interruptions + later.interruptions,
            later.why or self.why,
        )


def total(parts: Iterable[SaveCosts]) -> SaveCosts:
    return sum(parts, SaveCosts())


def of_attempt(outcome: Outcome | None, account: Mapping[str, Any]) -> SaveCosts:
    """By the attempt's account, those of the earlier starts of its job included."""
    earlier = account.get("earlier", ())
    return total(
        [*(_of_leg(_outcome(leg.get("outcome")), leg) for leg in earlier), _of_leg(outcome, account)]
    )


def _of_leg(outcome: Outcome | None, account: Mapping[str, Any]) -> SaveCosts:
    spans = [(Phase(name), float(seconds)) for name, seconds in account.get("spans", ())]
    saved = account.get("saved", {})
    return SaveCosts(
        saves=int(saved.get("times", 0)),
        blocked=float(account.get("saving") or 0.0),
        seconds=float(saved.get("seconds", 0.0)),
        slowest=float(saved.get("slowest", 0.0)),
        computed=sum(seconds for phase, seconds in spans if phase is Phase.COMPUTE),
        interruptions=int(was_interruption(outcome, account.get("code"), {phase for phase, _ in spans})),
        why=str(saved.get("why", "")),
    )


def _outcome(value: str | None) -> Outcome | None:
    return Outcome(value) if value else None
