"""Which ends are interruptions, and what a restarted job knows about its earlier starts."""

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

COMPUTED = (Phase.CLAIM, Phase.COMPUTE)


@pytest.mark.parametrize("outcome", Outcome)
def test_only_outcomes_caused_by_the_cluster_are_interruptions(outcome: Outcome) -> None:
    assert was_interruption(outcome, None, COMPUTED) is (CAUSES[outcome] is Cause.CLUSTER)


def test_a_start_without_a_logged_end_was_interrupted() -> None:
    assert was_interruption(None, None, COMPUTED)


def test_a_training_that_saved_and_left_when_stopped_was_not_interrupted() -> None:
    assert not was_interruption(Outcome.EVICTED, 85, COMPUTED)


def test_a_training_that_had_not_begun_or_had_finished_was_not_interrupted() -> None:
    assert not was_interruption(Outcome.EVICTED, None, (Phase.CLAIM, Phase.STAGE))
    assert not was_interruption(Outcome.EVICTED, None, (*COMPUTED, Phase.VALIDATE))


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
def test_computing_time_and_interruptions_are_read_from_event_logs(
    tmp_path: Path, text: str, expected: tuple[float, int]
) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(text)
    found = add_earlier_starts(
        SaveSettings(observed=1000.0, interruptions=2), [str(log), str(tmp_path / "none")]
    )
    assert (found.observed - 1000.0, found.interruptions - 2) == expected


def test_a_restarted_job_counts_its_earlier_starts(tmp_path: Path) -> None:
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
