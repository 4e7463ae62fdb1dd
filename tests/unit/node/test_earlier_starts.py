"""What counts as an interruption, and what a job that is started again knows of its earlier starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.model import CAUSES, Cause
from outlast.node import claim, legs
from outlast.node.earlier_starts import add_earlier_starts, was_interruption
from outlast.node.order import SaveSettings, WorkOrder
from outlast.node.protocol import Outcome, Phase

AT_WORK = (Phase.CLAIM, Phase.COMPUTE)


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_the_cluster_ends_is_an_interruption(outcome: Outcome) -> None:
    assert was_interruption(outcome, None, AT_WORK) is (CAUSES[outcome] is Cause.CLUSTER)


def test_an_end_without_a_word_is_an_interruption() -> None:
    assert was_interruption(None, None, AT_WORK)


def test_a_training_that_was_told_to_leave_and_has_saved_was_not_interrupted() -> None:
    assert not was_interruption(Outcome.EVICTED, 85, AT_WORK)


def test_what_had_not_begun_or_was_done_is_not_interrupted() -> None:
    assert not was_interruption(Outcome.EVICTED, None, (Phase.CLAIM, Phase.STAGE))
    assert not was_interruption(Outcome.EVICTED, None, (*AT_WORK, Phase.VALIDATE))


def lines(*events: tuple[str, float, dict[str, Any]]) -> str:
    return "".join(json.dumps({"event": event, "mono": mono, **more}) + "\n" for event, mono, more in events)


BEGUN = (("phase", 10.0, {"phase": "claim"}), ("phase", 12.0, {"phase": "compute"}))
CLEANED = ("phase", 112.0, {"phase": "clean-up"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lines(*BEGUN, ("beat", 62.0, {})), (50.0, 1)),
        (lines(*BEGUN, ("beat", 62.0, {}))[:-9] + "\n", (0.0, 1)),
        (lines(*BEGUN, CLEANED, ("end", 113.0, {"outcome": "evicted", "code": None})), (100.0, 1)),
        (lines(*BEGUN, CLEANED, ("end", 113.0, {"outcome": "continue", "code": 85})), (100.0, 0)),
        (lines(*BEGUN, CLEANED, ("end", 113.0, {"outcome": "over-time"})), (100.0, 0)),
        (lines(*BEGUN, CLEANED, ("end", 113.0, {"outcome": "unheard of"})), (100.0, 1)),
        (lines(BEGUN[0], ("end", 13.0, {"outcome": "network"})), (0.0, 0)),
        (lines(*BEGUN, *(("beat", 12.0 + n, {}) for n in range(9000))), (8999.0, 1)),
        ('[1]\n{"event": "phase", "mono": 1e999}\n{"mono": "x"}\n' + lines(*BEGUN), (0.0, 1)),
        ("", (0.0, 0)),
    ],
)
def test_time_at_work_and_interruptions_are_read_from_event_logs(
    tmp_path: Path, text: str, expected: tuple[float, int]
) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(text)
    found = add_earlier_starts(SaveSettings(observed=1000.0, interruptions=2), [str(log), str(tmp_path / "none")])
    assert (found.observed - 1000.0, found.interruptions - 2) == expected


def test_a_job_that_is_started_again_knows_of_its_earlier_starts(tmp_path: Path) -> None:
    order = WorkOrder("t", "e", "r", 1, ("true",), str(tmp_path), "/s", "/c", "/l", jobs=4)
    first, second, *_ = list(legs.possible_legs(str(tmp_path)))[:2]
    for leg, text in (
        (first, lines(*BEGUN, ("beat", 62.0, {}))),
        (second, lines(*BEGUN, CLEANED, ("end", 113.0, {"outcome": "continue", "code": 85}))),
    ):
        Path(leg.directory).mkdir(exist_ok=True)
        assert claim.acquire(leg.claim_path, "t", "j", "h")
        Path(leg.events_path).write_text(text)
        os.utime(leg.events_path, (0, 0))
    taken, _ = legs.claim_next(order, "k", "h")
    assert (taken.saving.observed, taken.saving.interruptions) == (150.0, 1)
