"""Automatic saving across a kill: what the next attempt learns, and what reports show."""

from __future__ import annotations

import json
from pathlib import Path

from outlast.node.order import read_order
from support.experiments import Lab

TRAINING = """\
import os, sys, time
import outlast
state = outlast.load() or {"step": 0, "weights": bytes(1_000_000)}
print("resumes from", state["step"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
    state["step"] += 1
    stop = outlast.should_stop()
    if stop or outlast.should_save():
        outlast.save(state, step=state["step"])
    if stop:
        outlast.leave()
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "out.txt"), "w") as file:
    file.write("done")
"""


def read_saves(directory: Path, number: int) -> list[dict[str, str]]:
    lines: list[dict[str, str]] = []
    for path in directory.glob("params/runs/interval/%03d-*/progress.jsonl" % number):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == "saved"]


def test_after_an_interruption_the_next_attempt_adapts_and_reports_show_what_saving_cost(
    lab: Lab,
) -> None:
    gate = lab.root / "go"
    directory = lab.experiment(
        "interval",
        {"train.py": TRAINING},
        command="python3 train.py %s" % gate,
        resources={"time": "30s"},
        checkpoints={"shortest": "0.5s", "longest": "2s"},
        outputs=["out.txt"],
    )
    controller = lab.start("run", directory)
    [first, *_] = lab.until("the first save", lambda: read_saves(directory, 1))
    assert first["why"] == "the first, to measure what a save costs"
    lab.outlast("local", "kill", "interval")
    [order] = lab.until(
        "another attempt", lambda: list(directory.glob("params/runs/interval/002-*/order.json"))
    )
    saving = read_order(str(order)).saving
    assert (saving.every, saving.shortest, saving.longest, saving.interruptions) == (None, 0.5, 2.0, 1)
    assert saving.observed > 0 and saving.blocked is not None and saving.durable is not None
    [second, *_] = lab.until("a save of the second attempt", lambda: read_saves(directory, 2))
    assert second["why"].startswith("every ") and second["why"].endswith("(1 so far)")
    gate.touch()
    assert lab.finish(controller).returncode == 0

    explained = lab.outlast("explain", "-C", directory).output
    assert "last save  the first, to measure what a save costs" in explained
    assert "last save  every " in explained
    assert "training waited " in explained
    found = lab.outlast("explain", "-C", directory, "--json").json["saving"]
    assert found["saves"] >= 2 and found["interruptions"] == 1 and found["lost"] > 0
    assert 0 <= found["blocked"] <= found["seconds"] and found["blocked"] < found["computed"]
    reported = lab.outlast("report", directory).output
    assert "INTERRUPTED" in reported and "(1 so far)" in reported
    sums = lab.outlast("report", directory, "--json").json
    assert sums["saving"] == found
    assert sum(attempt["saving"]["saves"] for attempt in sums["attempts"]) == found["saves"]
