"""Save costs, from the report of a node to `explain` and `report`."""

from __future__ import annotations

from typing import Any

import click
import pytest

from outlast.cli import save_table
from outlast.cli.commands.report import text
from outlast.domain import attempt_end
from outlast.domain.accounts import AttemptAccount
from outlast.domain.fold import apply
from outlast.domain.ledger import Booking, Use, book
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry, Outcome, Phase, Run, RunState
from outlast.domain.observation import Report, Save, Saved
from outlast.domain.outcomes import Conclusion
from outlast.domain.save_costs import SaveCosts, of_attempt, total

RUN = Run("r", 0, 1, {}, RunState.ACTIVE, added=0.0, since=0.0, attempts=1, current="t1")
ATTEMPT = Attempt("r", 1, "t1", AttemptState.RUNNING, intended=0.0)
WHY = "every 5 min: a save costs 0.2 s, and an interruption is expected every 24 h (none so far)"


def report(seconds: float, saved: Saved | None, saving: float = 0.0, **more: Any) -> Report:
    return Report(
        spans=((Phase.CLAIM, 1.0), (Phase.COMPUTE, seconds)),
        saves=(Save(seconds * 0.75, 7),) if saved else (),
        saved=saved,
        saving=saving,
        **more,
    )


def ended(report: Report, outcome: Outcome = Outcome.EVICTED) -> tuple[Run, Attempt]:
    decision = attempt_end.end_attempt(RUN, ATTEMPT, None, report, Conclusion(outcome, "gone"), 100.0)
    assert decision.kind is EntryKind.ENDED
    run, attempt = apply(RUN, ATTEMPT, JournalEntry(100.0, "r", EntryKind.ENDED, "t1", decision.data))
    assert attempt is not None
    return run, attempt


def test_saves_that_a_node_reported_are_in_the_account_and_in_the_run() -> None:
    run, attempt = ended(report(1000.0, Saved(40, 80.0, 6.0, WHY), saving=10.0))
    assert attempt.account.saved == Saved(40, 80.0, 6.0, WHY)
    assert of_attempt(attempt.outcome, attempt.account) == SaveCosts(40, 10.0, 80.0, 6.0, 1000.0, 1, WHY)
    assert (run.observed, run.interruptions) == (1000.0, 1)
    assert (run.save_blocked, run.save_durable) == (0.25, 6.0)


def test_earlier_starts_of_a_job_count_each_by_its_own_end() -> None:
    silent = report(100.0, Saved(4, 8.0, 3.0, "first"), saving=1.0)
    left = report(200.0, None, logged_outcome=Outcome.EVICTED, code=85)
    last = report(
        300.0, Saved(1, 2.0, 2.0), saving=0.5, earlier=(silent, left), logged_outcome=Outcome.CONTINUE
    )
    run, attempt = ended(last, Outcome.CONTINUE)
    assert of_attempt(attempt.outcome, attempt.account) == SaveCosts(5, 1.5, 10.0, 3.0, 600.0, 1, "first")
    assert run.interruptions == 1


def test_an_account_without_saves_has_no_save_costs() -> None:
    assert of_attempt(Outcome.LOST, AttemptAccount()) == SaveCosts()
    assert of_attempt(None, AttemptAccount(slot=5.0, saves=(Save(1.0, None),))) == SaveCosts()
    assert total([]) == SaveCosts()
    assert SaveCosts().share == 0.0


def test_explain_shows_how_often_what_it_cost_and_why() -> None:
    its = SaveCosts(41, 8.2, 120.0, 6.0, 3600.0, 1, WHY)
    assert save_table.attempt_lines(812, its) == [
        ("saved", "step 812; 41 saves, training waited 8.2 s (0.2 % of 1 h)"),
        ("last save", WHY),
    ]
    assert save_table.attempt_lines(None, SaveCosts(1, 0.001, 0.1, 0.1, 3600.0)) == [
        ("saved", "1 save, training waited <0.1 s (<0.1 % of 1 h)")
    ]
    assert save_table.attempt_lines(7, SaveCosts()) == [("saved", "step 7")]
    assert save_table.attempt_lines(None, SaveCosts(computed=5.0)) == []
    assert save_table.attempt_lines(None, SaveCosts(why="\x1b[31m")) == [("last save", "�[31m")]


def booking(run: str, number: int, saving: SaveCosts, lost: float = 0.0) -> Booking:
    uses = {Use.USEFUL: 90.0, Use.SAVING: saving.blocked, Use.LOST_WORK: lost}
    return Booking(run, number, "n1", Outcome.EVICTED, 100.0, uses, (), saving)


BOOKINGS = [
    booking("a", 1, SaveCosts(10, 2.0, 9.0, 3.0, 100.0, 1, "the first"), lost=8.0),
    booking("a", 2, SaveCosts(5, 1.0, 4.0, 1.0, 100.0, 0, "at the stop signal; else " + WHY)),
    booking("b", 1, SaveCosts()),
]


def test_the_report_shows_for_each_run_what_saving_did_and_what_it_cost() -> None:
    lines = click.unstyle(text(BOOKINGS)).splitlines()
    [head] = [number for number, line in enumerate(lines) if "SAVE INTERVAL" in line]
    assert lines[head].split() == [
        "RUN",
        "SAVES",
        "WAITED",
        "SHARE",
        "SLOWEST",
        "INTERRUPTED",
        "LOST",
        "WORK",
        "SAVE",
        "INTERVAL",
    ]
    assert " ".join(lines[head + 1].split("  every")[0].split()) == "a 15 3 s 1.5 % 3 s 1 8 s"
    assert lines[head + 1].endswith(WHY)
    assert len(lines) == head + 2, "a run without saves has no line"


def test_a_report_without_saves_does_not_mention_them() -> None:
    assert "SAVE INTERVAL" not in text([BOOKINGS[2]])


def test_for_many_runs_the_save_costs_are_shown_in_sum() -> None:
    many = [booking("run-%02d" % n, 1, SaveCosts(2, 1.0, 4.0, 3.0, 100.0)) for n in range(40)]
    row = next(line for line in click.unstyle(text(many)).splitlines() if line.startswith("all runs"))
    assert row.split()[2] == "80"
    assert "run-07" in text(many, everything=True)


def test_the_json_has_the_sums_and_the_lost_work() -> None:
    found = save_table.as_json(BOOKINGS)
    assert found == {
        "saves": 15,
        "blocked": 3.0,
        "seconds": 13.0,
        "slowest": 3.0,
        "computed": 200.0,
        "interruptions": 1,
        "why": "at the stop signal; else " + WHY,
        "lost": 8.0,
    }


def test_a_booking_has_the_save_costs_of_its_attempt() -> None:
    run, attempt = ended(report(1000.0, Saved(40, 80.0, 6.0), saving=10.0))
    [its] = book(run, [attempt])
    assert its.saving.saves == 40
    # The checkpoint holds three quarters of the work, so three quarters of the waiting was useful.
    assert its.uses[Use.SAVING] == pytest.approx(7.5)
    assert its.uses[Use.LOST_WORK] == pytest.approx(250.0)
