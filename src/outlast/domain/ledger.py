"""The ledger: every second that an attempt held its slot, booked once under the use it was put to.

A second is *useful* if its computation is part of the accepted result or, while the run is not over, of a
checkpoint that the next attempt can resume from. All other uses are waste. The uses of an attempt partition
its slot time, which comes from the scheduler, or from the node's clock if the scheduler forgot the job.
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
    """The uses of slot time, as they appear in `report --json`."""

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


#: The meaning of each use, as `report` shows it.
MEANING: Mapping[Use, str] = {
    Use.USEFUL: "computing that is part of the result",
    Use.SAVING: "the training waited for its checkpoints",
    Use.DATA: "data in transfer into the job, and other input that the scheduler transfers",
    Use.DATA_TROUBLE: "stalls, retries and waiting for data sources",
    Use.START_UP: "claim, staging, unpacking, environment",
    Use.WRAP_UP: "checking and delivering outputs, cleaning up",
    Use.LOST_WORK: "computed after the last checkpoint that was used, and done again",
    Use.FAILED: "computing in runs that failed",
    Use.CANCELLED: "computing in runs that were cancelled",
    Use.DUPLICATE: "jobs that turned up after they had been given up",
    Use.UNLOGGED: "allocated, but not recorded (job starting, killed or lost)",
}

_START_UP = (Phase.CLAIM, Phase.STAGE, Phase.UNPACK, Phase.ENVIRONMENT)


@dataclass(frozen=True)
class Booking:
    """The slot time of one attempt, in seconds by use."""

    run: str
    number: int
    host: str
    outcome: Outcome | None
    slot: float
    uses: Mapping[Use, float] = field(default_factory=dict)
    #: The data that it waited for, in all starts of its job.
    data: Sequence[ItemAccount] = ()
    #: Its saves, and their cost.
    saving: SaveCosts = SaveCosts()  # noqa: RUF009 - frozen


def book(run: Run, attempts: Sequence[Attempt]) -> list[Booking]:
    """Return the bookings of those `attempts` of a run that have ended; both in order."""
    bookings = []
    horizon = _Horizon()
    for attempt in reversed(attempts):
        if attempt.token in run.accepted_before:
            # It gave a result of its own, whatever came of the one that the user asked for afterwards.
            run = replace(run, accepted=attempt.token, state=RunState.FINISHED)
            horizon = _Horizon()
        if attempt.state is AttemptState.ENDED:
            bookings.append(_book(run, attempt, horizon))
    return bookings[::-1]


def total(bookings: Iterable[Booking]) -> dict[Use, float]:
    """Return the seconds of all bookings, by use; every use is present."""
    sums = dict.fromkeys(Use, 0.0)
    for booking in bookings:
        for use, seconds in booking.uses.items():
            sums[use] += seconds
    return sums


_NO_USES = dict.fromkeys(Use, 0.0)


@dataclass(frozen=True)
class _LedgerLeg:
    """A start of an attempt's job, with its share of the slot time."""

    account: LegAccount
    slot: float
    accepted: bool

    @property
    def logged(self) -> float:
        return self.account.logged


def _in_program(attempt: Attempt) -> float:
    """Return the slot time after the scheduler's own transfers, in seconds."""
    before = data_costs.cost_before_start(attempt.account)
    return attempt.account.slot_seconds - before.transfer - before.lost


def _legs(run: Run, attempt: Attempt) -> list[_LedgerLeg]:
    """Return the starts of an attempt's job in order, each with its share of the slot time.

    Only the sum of the slot time is known. Each start gets what it logged, the last one also the rest. If
    they logged more than the sum (a start may outlive its job's listing), the earliest get less.
    """
    left = _in_program(attempt)
    if not attempt.account.earlier:
        return [_LedgerLeg(attempt.account, left, accepted=run.accepted == attempt.token)]
    last = _LedgerLeg(attempt.account, 0.0, accepted=run.accepted == attempt.token)
    earlier = [_LedgerLeg(account, 0.0, accepted=False) for account in attempt.account.earlier]
    legs: list[_LedgerLeg] = []
    for leg in reversed((*earlier, last)):
        slot = min(leg.logged, left)
        left -= slot
        legs.insert(0, replace(leg, slot=slot))
    return [*legs[:-1], replace(legs[-1], slot=legs[-1].slot + left)]


class _Horizon:
    """The oldest step that any later leg resumed from, while legs are visited from the last to the first."""

    def __init__(self) -> None:
        self.resumed_later = False
        self.step: int | None = None

    def pass_over(self, leg: _LedgerLeg) -> None:
        """Take the step that `leg` resumed from into account."""
        if not leg.account.loaded:
            return
        resumed = leg.account.resumed
        if not self.resumed_later:
            self.resumed_later, self.step = True, resumed
        elif self.step is not None:
            self.step = min(self.step, resumed) if resumed is not None else None


def _book(run: Run, attempt: Attempt, horizon: _Horizon) -> Booking:
    uses = _NO_USES.copy()
    for leg in reversed(_legs(run, attempt)):
        _book_leg(run, leg, horizon, uses)
        horizon.pass_over(leg)
    before = data_costs.cost_before_start(attempt.account)
    uses[Use.DATA] += before.transfer
    uses[Use.DATA_TROUBLE] += before.lost
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
        # The clocks of node and scheduler may disagree slightly: the slot time is what counts.
        seconds = min(logged, left)
        left -= seconds
        if phase is Phase.STAGE:
            data = data_costs.cost_in_leg(leg.account, seconds)
            uses[Use.DATA] += data.transfer
            uses[Use.DATA_TROUBLE] += data.lost
            uses[Use.START_UP] += seconds - data.transfer - data.lost
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
    # Saves after the last one that was used are part of the lost work.
    saving = saving * kept / seconds if seconds else 0.0
    uses[Use.SAVING] += saving
    uses[Use.USEFUL] += kept - saving
    uses[Use.LOST_WORK] += seconds - kept


def _kept(leg: _LedgerLeg, horizon: _Horizon) -> float:
    """Return the seconds of the compute phase that are in a checkpoint that was, or can be, resumed from."""
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
