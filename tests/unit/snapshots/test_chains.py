"""The jobs of a chain go back to an older snapshot without a controller, by the same rule as it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.node import environment, legs
from outlast.node.order import WorkOrder

CRASH = {"event": "end", "outcome": "crashed", "signature": "s"}


def order_of(root: Path, **changes: Any) -> WorkOrder:
    facts: dict[str, Any] = {
        "token": "a",
        "experiment": str(root),
        "run": "r",
        "number": 1,
        "command": ("true",),
        "exchange": str(root / "exchange"),
        "scratch": str(root / "scratch"),
        "checkpoints": str(root / "checkpoints"),
        "log": str(root / "log"),
        "jobs": 9,
    }
    return WorkOrder(**{**facts, **changes})


def end_leg(root: Path, number: int, **facts: Any) -> legs.Leg:
    """Write what leg `number` leaves: its claim, and the last line of its event log."""
    directory = root / "exchange" if number == 1 else root / "exchange" / ("leg-%d" % number)
    directory.mkdir(parents=True)
    leg = legs.Leg(number, str(directory))
    Path(leg.claim_path).write_text(json.dumps({"job": "7", "host": "h"}))
    Path(leg.events_path).write_text(json.dumps({**CRASH, **facts}) + "\n")
    return leg


@pytest.mark.parametrize(
    ("facts", "before"),
    [
        ([{"go_back": 7}], None),  # a crash may be random
        ([{"go_back": 7, "unsure": True}], 7),
        ([{"go_back": 7}, {"go_back": 7}], 7),
        ([{"go_back": 7}, {"go_back": 7}, {"go_back": 6}], 6),
        ([{"go_back": 7}, {"go_back": 7}, {"outcome": "evicted"}], None),
        ([{"go_back": "7", "unsure": True}], None),
    ],
)
def test_a_job_of_a_chain_starts_before_the_snapshot_that_the_last_ones_failed_on(
    tmp_path: Path, facts: list[dict[str, Any]], before: int | None
) -> None:
    for number, one in enumerate(facts, start=1):
        end_leg(tmp_path, number, **one)
    adapted, leg = legs.claim_next(order_of(tmp_path), "8", "h")
    assert (leg.number, adapted.start_before) == (len(facts) + 1, before)


def test_a_chain_is_over_when_no_older_snapshot_is_left(tmp_path: Path) -> None:
    order = order_of(tmp_path)
    end_leg(tmp_path, 1, go_back=7)
    assert legs.why_chain_is_over(order, end_leg(tmp_path, 2, go_back=7)) == ""
    assert legs.why_chain_is_over(order, end_leg(tmp_path, 3)) == "has failed twice in the same way"


def test_words_to_resume_are_added_only_if_there_is_something_to_resume_from(tmp_path: Path) -> None:
    order = order_of(tmp_path, resume=("--resume", "a b"))
    assert environment.add_resume_words(order) == ("true",)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/.unfinished").write_text("")
    assert environment.add_resume_words(order) == ("true",)
    assert environment.add_resume_words(order, made=True) == ("true", "--resume", "a b")
    (tmp_path / "checkpoints/model").write_text("")
    assert environment.add_resume_words(order) == ("true", "--resume", "a b")
