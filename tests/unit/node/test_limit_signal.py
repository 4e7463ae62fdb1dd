"""The scheduler's signal for the wall-time limit means the limit, whenever it arrives."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.node import environment
from outlast.node.attempt import AttemptRunner
from outlast.node.attempt_result import AttemptResult
from outlast.node.event_log import EventLog
from outlast.node.legs import Leg
from outlast.node.order import WorkOrder
from outlast.node.output_rule import OutputRule
from outlast.node.protocol import Outcome
from outlast.node.signals import Signals
from outlast.node.supervise import StopSignals
from outlast.node.time_limits import limits_for


class Bench:
    """Runs an attempt in a forked process, with SIGUSR1 as the signal for the limit."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def run(self, early: int | None = None, check: str = "true") -> Outcome:
        child = os.fork()  # an attempt kills all children of its process
        if child == 0:
            try:
                (self._place / "outcome").write_text(self._run(early, check).outcome.value)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return Outcome((self._place / "outcome").read_text())

    def _run(self, early: int | None, check: str) -> AttemptResult:
        order = WorkOrder(
            token=f"token-{os.getpid()}-{self._place.name}",
            experiment="e",
            run="digits",
            number=1,
            command=("sh", "-c", "echo 1 > $OUTLAST_OUTPUT_DIR/a"),
            exchange=str(self._place),
            scratch=str(self._place / "scratch"),
            checkpoints=str(self._place / "checkpoints"),
            log=str(self._place / "log.txt"),
            zipapp="none",
            outputs=(OutputRule("a", check=("sh", "-c", check)),),
        )
        limits = limits_for(3600, 60, time.monotonic(), time.time())
        stops = StopSignals(signal.SIGTERM, signal.SIGUSR1)
        with Signals() as signals:
            if early is not None:
                os.kill(os.getpid(), early)
            leg = Leg(1, str(self._place))
            return AttemptRunner(order, leg, limits, stops, signals, EventLog(leg.events_path)).run()

    @property
    def stop(self) -> dict[str, Any]:
        lines = (self._place / "events.jsonl").read_text().splitlines()
        (found,) = (line for line in map(json.loads, lines) if line["event"] == "stop")
        return dict(found)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


SIGNALS = pytest.mark.parametrize(
    ("number", "why", "outcome"),
    [(signal.SIGUSR1, "limit", Outcome.OVER_TIME), (signal.SIGUSR2, "signal", Outcome.EVICTED)],
)


@SIGNALS
def test_a_signal_while_data_is_staged(bench: Bench, number: int, why: str, outcome: Outcome) -> None:
    assert bench.run(early=number) is outcome
    assert (bench.stop["why"], bench.stop["signal"]) == (why, number)


@SIGNALS
def test_a_signal_just_before_the_training_starts(
    bench: Bench, number: int, why: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_training = environment.for_training

    def signal_and_continue(*arguments: Any) -> dict[str, str]:
        os.kill(os.getpid(), number)
        return for_training(*arguments)

    monkeypatch.setattr(environment, "for_training", signal_and_continue)
    assert bench.run() is outcome
    assert (bench.stop["why"], bench.stop["signal"]) == (why, number)


@SIGNALS
def test_a_signal_while_outputs_are_checked(bench: Bench, number: int, why: str, outcome: Outcome) -> None:
    assert bench.run(check=f"kill -{number} $PPID; exit 1") is outcome
    assert (bench.stop["why"], bench.stop["signal"]) == (why, number)
