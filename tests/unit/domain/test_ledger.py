"""Hand-computed cases: the bookings of an attempt add up to its slot time."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.domain.accounts import AttemptAccount, read_account
from outlast.domain.ledger import MEANING, Booking, Use, book, total
from outlast.domain.model import Attempt, AttemptState, Outcome, Run, RunState


def a_run(state: RunState = RunState.ACTIVE, accepted: str | None = None) -> Run:
    return Run(name="r", position=0, spec=1, params={}, state=state, added=0.0, since=0.0, accepted=accepted)


def an_attempt(number: int, slot: float, compute: float | None = None, **account: Any) -> Attempt:
    """Return an attempt with 2 s of start-up and `compute` seconds; the rest of `slot` was not logged."""
    spans = [["claim", 0.5], ["stage", 1.5]] + ([["compute", compute]] if compute is not None else [])
    return Attempt(
        run="r",
        number=number,
        token="t%d" % number,
        state=AttemptState.ENDED,
        intended=0.0,
        outcome=Outcome.EVICTED,
        twin_slot=account.pop("twin_slot", 0.0),
        account=read_account({"slot": slot, "spans": [*spans, *account.pop("more", [])], **account}),
    )


def booked(booking: Booking) -> dict[str, float]:
    assert sum(booking.uses.values()) == pytest.approx(booking.slot)
    return {use.value: pytest.approx(seconds) for use, seconds in booking.uses.items()}


def test_every_use_has_a_meaning() -> None:
    assert set(MEANING) == set(Use)


def test_an_accepted_attempt_is_useful_as_a_whole() -> None:
    attempt = an_attempt(1, 110.0, 100.0, saving=4.0, more=[["validate", 1.0], ["deliver", 2.0]])
    [booking] = book(a_run(RunState.FINISHED, "t1"), [attempt])
    assert booked(booking) == {
        "useful": 96.0,
        "saving": 4.0,
        "start-up": 2.0,
        "wrap-up": 3.0,
        "unlogged": 5.0,
    }


def test_killed_without_a_save_everything_computed_is_lost() -> None:
    [booking] = book(a_run(), [an_attempt(1, 60.0, 50.0)])
    assert booked(booking) == {"lost work": 50.0, "start-up": 2.0, "unlogged": 8.0}


def test_what_follows_the_last_save_is_lost_and_the_rest_is_useful() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[40.0, 4], [80.0, 8]], saving=10.0)
    second = an_attempt(2, 32.0, 30.0, loaded=True, resumed=8)
    bookings = book(a_run(RunState.FINISHED, "t2"), [first, second])
    assert booked(bookings[0]) == {"useful": 72.0, "saving": 8.0, "lost work": 20.0, "start-up": 2.0}
    assert total(bookings)[Use.USEFUL] == pytest.approx(102.0)


def test_with_the_last_checkpoint_torn_only_the_one_before_counts() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[40.0, 4], [80.0, 8]])
    second = an_attempt(2, 32.0, 30.0, loaded=True, resumed=4)
    assert booked(book(a_run(), [first, second])[0]) == {"useful": 40.0, "lost work": 60.0, "start-up": 2.0}


def test_a_step_that_was_torn_once_does_not_count_because_a_later_attempt_passed_it() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[40.0, 4], [80.0, 8]])
    second = an_attempt(2, 62.0, 60.0, loaded=True, resumed=4, saves=[[60.0, 10]])
    third = an_attempt(3, 32.0, 30.0, loaded=True, resumed=10)
    bookings = book(a_run(RunState.FINISHED, "t3"), [first, second, third])
    assert [booking.uses[Use.USEFUL] for booking in bookings] == [40.0, 60.0, 30.0]


def test_an_attempt_from_whose_saves_no_attempt_resumed_is_lost_work() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[100.0, 10]])
    second = an_attempt(2, 52.0, 50.0, loaded=True, resumed=10, saves=[[50.0, 15]])
    third = an_attempt(3, 52.0, 50.0, loaded=True, resumed=10)
    bookings = book(a_run(RunState.FINISHED, "t3"), [first, second, third])
    assert [booking.uses.get(Use.USEFUL, 0.0) for booking in bookings] == [100.0, 0.0, 50.0]


def test_starting_from_scratch_makes_all_before_it_lost() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[100.0, 10]])
    second = an_attempt(2, 52.0, 50.0, loaded=True)
    assert Use.USEFUL not in book(a_run(), [first, second])[0].uses


def test_an_attempt_that_loaded_nothing_does_not_change_earlier_bookings() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[100.0, 10]])
    second = an_attempt(2, 3.0)
    assert book(a_run(), [first, second])[0].uses[Use.USEFUL] == 100.0


def test_a_script_that_logs_no_steps_is_credited_up_to_its_last_change() -> None:
    first = an_attempt(1, 102.0, 100.0, saves=[[40.0, None], [90.0, None]])
    second = an_attempt(2, 52.0, 50.0)
    assert book(a_run(), [first, second])[0].uses[Use.USEFUL] == 90.0


@pytest.mark.parametrize(
    ("state", "use"), [(RunState.FAILED, Use.FAILED), (RunState.CANCELLED, Use.CANCELLED)], ids=str
)
def test_computing_in_a_run_without_a_result_is_waste(state: RunState, use: Use) -> None:
    [booking] = book(a_run(state), [an_attempt(1, 102.0, 100.0, saves=[[100.0, 10]])])
    assert booked(booking) == {use.value: 100.0, "start-up": 2.0}


def test_a_twin_is_booked_on_top_of_the_slot() -> None:
    [booking] = book(a_run(), [an_attempt(1, 2.0, twin_slot=30.0)])
    assert booking.slot == 32.0
    assert booked(booking) == {"start-up": 2.0, "duplicate": 30.0}


def test_a_log_longer_than_the_slot_is_cut_to_it() -> None:
    [booking] = book(a_run(), [an_attempt(1, 50.0, 100.0, saves=[[90.0, 9]])])
    assert booked(booking) == {"useful": 48.0, "start-up": 2.0}


def test_an_attempt_that_held_no_slot_costs_nothing_and_one_under_way_is_not_booked() -> None:
    never = Attempt(run="r", number=1, token="t1", state=AttemptState.ENDED, intended=0.0)
    going = Attempt(run="r", number=2, token="t2", state=AttemptState.RUNNING, intended=0.0)
    [booking] = book(a_run(), [never, going])
    assert booking.slot == 0.0 and not booking.uses


STALL = {"stall": {"count": 1, "bytes": 0, "seconds": 3.0}}


def test_transfers_of_the_scheduler_are_data_and_their_delays_are_data_trouble() -> None:
    item = {"name": "a", "arrived": True, "carried": True, "waited": 0.5, "troubles": STALL}
    attempt = an_attempt(1, 60.0, 20.0, bringing=20.0, in_vain=10.0, data=[item])
    [booking] = book(a_run(RunState.FINISHED, "t1"), [attempt])
    assert booked(booking) == {
        "useful": 20.0,
        "data": 17.5,
        "data trouble": 13.0,
        "start-up": 1.5,
        "unlogged": 8.0,
    }


def test_a_job_that_never_began_held_its_slot_for_its_input() -> None:
    attempt = Attempt(
        "r",
        1,
        "t1",
        AttemptState.ENDED,
        0.0,
        outcome=Outcome.NOT_FOUND,
        account=AttemptAccount(slot=9.0, in_vain=9.0),
    )
    [booking] = book(a_run(), [attempt])
    assert booked(booking) == {"data trouble": 9.0}


def test_time_lost_to_data_errors_is_a_part_of_the_wait_for_data() -> None:
    item = {"name": "a", "arrived": True, "waited": 1.2, "troubles": STALL}
    [booking] = book(a_run(), [an_attempt(1, 2.0, data=[item])])
    assert booked(booking) == {"data trouble": 1.2, "start-up": 0.8}
