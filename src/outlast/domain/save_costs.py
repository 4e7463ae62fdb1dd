"""The cost of saving checkpoints, per attempt and in sum.

`outlast.should_save` derives from it how often to save; `explain` and `report` show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlast.domain.accounts import AttemptAccount, LegAccount, Saved
from outlast.node.earlier_starts import was_interruption
from outlast.node.protocol import Outcome


@dataclass(frozen=True)
class SaveCosts:
    """Number and seconds of the saves of one or more attempts."""

    saves: int = 0
    #: Seconds that the training waited for them, and seconds until they were durable.
    blocked: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0
    #: Seconds that the training computed, and how often the cluster interrupted it.
    computed: float = 0.0
    interruptions: int = 0
    #: Why the last save was made, as the training process logged it.
    why: str = ""

    @property
    def share(self) -> float:
        """The part of the compute time that was spent waiting for saves."""
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
    """Add up the costs of several attempts."""
    return sum(parts, SaveCosts())


def of_attempt(outcome: Outcome | None, account: AttemptAccount) -> SaveCosts:
    """Return the save costs of an attempt with this outcome, all starts of its job included."""
    if not account.earlier:
        return _of_leg(outcome, account)
    return total([*(_of_leg(leg.outcome, leg) for leg in account.earlier), _of_leg(outcome, account)])


_NO_SAVES = Saved(0, 0.0, 0.0)


def _of_leg(outcome: Outcome | None, leg: LegAccount) -> SaveCosts:
    saved = leg.saved or _NO_SAVES
    return SaveCosts(
        saves=saved.times,
        blocked=leg.saving,
        seconds=saved.seconds,
        slowest=saved.slowest,
        computed=leg.computed,
        interruptions=int(was_interruption(outcome, leg.code, [phase for phase, _ in leg.spans])),
        why=saved.why,
    )
