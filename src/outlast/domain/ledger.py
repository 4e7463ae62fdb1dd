"""Where the time went: every second that an attempt held its slot, booked once.

A second is *useful* when what was computed in it is part of the accepted result (or, while a run is under
way, part of a checkpoint that the next attempt can go on from). Everything else is one kind of waste. The
bookings of an attempt partition its slot time, so they add up to it by construction; the slot time itself
comes from the scheduler, and from the node's own clock where the scheduler has forgotten the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from outlast.domain import data_costs
from outlast.domain.accounts import ItemAccount, LegAccount
from outlast.domain.model import Attempt, AttemptState, Outcome, Phase, Run, RunState
from outlast.domain.save_costs import SaveCosts, of_attempt


class Use(str, Enum):
    USEFUL = "useful"
    SAVING = "saving"
    DATA = "data"
    DATA_TROUBLE = "data trouble"
    START_UP = "start-up"
    WRAP_UP = "wrap-up"
    LOST_WORK = "lost work"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    UNLOGGED = "unlogged"


#: What each use means, for the report.
MEANING: Mapping[Use, str] = {
    Use.USEFUL: "computing that is part of the result",
    Use.SAVING: "the training waited for its checkpoints",
    Use.DATA: "data on its way into the job, and other input that the scheduler brings",
    Use.DATA_TROUBLE: "stalls, retries and waiting for sources of data",
    Use.START_UP: "claim, staging, unpacking, environment",
    Use.WRAP_UP: "checking and delivering outputs, cleaning up",
    Use.LOST_WORK: "computed after the last checkpoint that was used, and done again",
    Use.FAILED: "computing in runs that failed",
    Use.CANCELLED: "computing in runs that were cancelled",
    Use.DUPLICATE: "jobs that turned up after they had been given up",
    Use.UNLOGGED: "slot held while no node program could write (starting, killed, vanished)",
}

_START_UP = (Phase.CLAIM, Phase.STAGE, Phase.UNPACK, Phase.ENVIRONMENT)


@dataclass(frozen=True)
class Booking:
    """One attempt's slot time, by use."""

    run: str
    number: int
    host: str
    outcome: Outcome | None
    slot: float
    uses: Mapping[Use, float] = field(default_factory=dict)
    #: The data it waited for, in all starts of its job.
    data: Sequence[ItemAccount] = ()
    #: What saving did and what it cost.
    saving: SaveCosts = SaveCosts()  # noqa: RUF009 - frozen


def book(run: Run, attempts: Sequence[Attempt]) -> list[Booking]:
    """The bookings of a run's attempts that have ended; `attempts` in their order."""
    bookings = []
    horizon = _Horizon()
    for attempt in reversed(attempts):
        if attempt.state is AttemptState.ENDED:
            bookings.append(_book(run, attempt, horizon))
    return bookings[::-1]


def total(bookings: Iterable[Booking]) -> dict[Use, float]:
    sums = dict.fromkeys(Use, 0.0)
    for booking in bookings:
        for use, seconds in booking.uses.items():
            sums[use] += seconds
    return sums


@dataclass(frozen=True)
class _LedgerLeg:
    """One start of an attempt's job, which may have been started several times."""

    account: LegAccount
    slot: float
    accepted: bool

    @property
    def logged(self) -> float:
        return self.account.logged


def _in_program(attempt: Attempt) -> float:
    """Slot time without that of the scheduler's own transfers, before the job's program began."""
    before = data_costs.cost_before_start(attempt.account)
    return attempt.account.slot_seconds - before.arriving - before.troubled


def _legs(run: Run, attempt: Attempt) -> list[_LedgerLeg]:
    """The slot time is known for all of them together: what nobody logged is booked with the last.

    An earlier one may have logged more than its slot time, at work when the scheduler had lost it already.
    """
    left = _in_program(attempt)
    last = _LedgerLeg(attempt.account, 0.0, accepted=run.accepted == attempt.token)
    earlier = [_LedgerLeg(account, 0.0, accepted=False) for account in attempt.account.earlier]
    legs: list[_LedgerLeg] = []
    for leg in reversed((*earlier, last)):
        slot = min(leg.logged, left)
        left -= slot
        legs.insert(0, replace(leg, slot=slot))
    return [*legs[:-1], replace(legs[-1], slot=legs[-1].slot + left)]


class _Horizon:
    """Going backwards through the legs: the oldest step that any later one went on from."""

    def __init__(self) -> None:
        self.resumed_later = False
        self.step: int | None = None

    def pass_over(self, leg: _LedgerLeg) -> None:
        if not leg.account.loaded:
            return
        resumed = leg.account.resumed
        if not self.resumed_later:
            self.resumed_later, self.step = True, resumed
        elif self.step is not None:
            self.step = min(self.step, resumed) if resumed is not None else None


def _book(run: Run, attempt: Attempt, horizon: _Horizon) -> Booking:
    uses = dict.fromkeys(Use, 0.0)
    for leg in reversed(_legs(run, attempt)):
        _book_leg(run, leg, horizon, uses)
        horizon.pass_over(leg)
    before = data_costs.cost_before_start(attempt.account)
    uses[Use.DATA] += before.arriving
    uses[Use.DATA_TROUBLE] += before.troubled
    uses[Use.DUPLICATE] += attempt.twin_slot
    return Booking(
        run.name,
        attempt.number,
        attempt.host,
        attempt.outcome,
        attempt.account.slot_seconds + attempt.twin_slot,
        {use: seconds for use, seconds in uses.items() if seconds},
        tuple(attempt.account.items),
        of_attempt(attempt.outcome, attempt.account),
    )


def _book_leg(run: Run, leg: _LedgerLeg, horizon: _Horizon, uses: dict[Use, float]) -> None:
    left = leg.slot
    for phase, logged in leg.account.spans:
        # The node's clock and the scheduler's may disagree by a little: the slot is what was paid for.
        seconds = min(logged, left)
        left -= seconds
        if phase is Phase.STAGE:
            data = data_costs.cost_in_leg(leg.account, seconds)
            uses[Use.DATA] += data.arriving
            uses[Use.DATA_TROUBLE] += data.troubled
            uses[Use.START_UP] += seconds - data.arriving - data.troubled
        elif phase in _START_UP:
            uses[Use.START_UP] += seconds
        elif phase is Phase.COMPUTE:
            _book_compute(run, leg, horizon, seconds, uses)
        else:
            uses[Use.WRAP_UP] += seconds
    uses[Use.UNLOGGED] += left


def _book_compute(
    run: Run, leg: _LedgerLeg, horizon: _Horizon, seconds: float, uses: dict[Use, float]
) -> None:
    if run.state is RunState.FAILED:
        uses[Use.FAILED] += seconds
        return
    if run.state is RunState.CANCELLED:
        uses[Use.CANCELLED] += seconds
        return
    saving = min(leg.account.saving, seconds)
    kept = seconds if leg.accepted else min(_kept(leg, horizon), seconds)
    # Saves after the last one that was used are part of the work that was lost.
    saving = saving * kept / seconds if seconds else 0.0
    uses[Use.SAVING] += saving
    uses[Use.USEFUL] += kept - saving
    uses[Use.LOST_WORK] += seconds - kept


def _kept(leg: _LedgerLeg, horizon: _Horizon) -> float:
    """How much of the compute phase is in a checkpoint that counts."""
    saves = leg.account.saves
    if not saves:
        return 0.0
    if not horizon.resumed_later:
        return saves[-1].offset
    if all(save.step is None for save in saves):
        return saves[-1].offset
    if horizon.step is None:
        return 0.0
    used = (save.offset for save in saves if save.step is not None and save.step <= horizon.step)
    return max(used, default=0.0)
