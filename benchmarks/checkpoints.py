"""Save and load a state of 100 MB and of 1 GB with outlast and with other libraries, in one run.

Run `python benchmarks/checkpoints.py`, with `--rounds N` or `--json`. Each way has a process of its own;
rounds alternate between them, and a ratio compares two results of the same round. Files are written to the
directory for temporary files; on an image mounted from a file, writes would always go through the page cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from measuring import SMOKE_HELP, cost, shrink
from verdicts import Goal, Row, as_json, in_turns, ratio, show

SIZES = {"100 MB": 100 << 20, "1 GB": 1 << 30}
SMOKE: dict[str, Any] = {"SIZES": {"1 MB": 1 << 20}, "CASE_OPTIONS": ["--smoke"]}
WAYS = ("outlast.save", "torch.save", "safetensors", "dcp", "bare", "copy")
CASE = str(Path(__file__).with_name("checkpoint_case.py"))
CASE_OPTIONS: list[str] = []

Result = dict[str, float]


def measure(place: Path, size: int, rounds: int) -> dict[str, list[Result]]:
    def case(way: str) -> Result:
        done = cost([sys.executable, CASE, way, str(size), str(place / "case"), *CASE_OPTIONS])
        result: Result = json.loads(done.output.splitlines()[-1])
        return {**result, "resumed": case("resumed")["first"]} if way == "outlast.save" else result

    return in_turns({way: lambda way=way: case(way) for way in WAYS}, rounds)


def rows(found: dict[str, list[Result]]) -> list[Row]:
    def seconds(way: str, what: str) -> str:
        return ", ".join("%.3f" % result[what] for result in found[way])

    def compared(name: str, what: str, other: str, goal: Goal | None = None, theirs: str = "") -> Row:
        theirs = theirs or what
        value = ratio(
            (result[what] for result in found["outlast.save"]), (result[theirs] for result in found[other])
        )
        beside = "s: %s against %s" % (seconds("outlast.save", what), seconds(other, theirs))
        return Row(name, value, "×", goal, beside)

    first = "blocked by the first save of a run that %s, of torch.save + fsync"
    memory = max(result["memory"] for result in found["outlast.save"])
    others = ", ".join("%s %.2f" % (way, found[way][0]["memory"]) for way in WAYS[1:4])
    return [
        compared("blocked, of torch.save + fsync", "blocked", "torch.save", Goal(most=0.06)),
        compared(first % "starts", "first", "torch.save", theirs="blocked"),
        compared(first % "resumes", "resumed", "torch.save", theirs="blocked"),
        compared("blocked, of a copy in memory", "blocked", "copy"),
        compared("blocked, of DCP async_save", "blocked", "dcp"),
        compared("blocked, of safetensors + fsync", "blocked", "safetensors"),
        compared("durable, of a bare write + fsync", "durable", "bare", Goal(most=1.25)),
        compared("durable, of torch.save + fsync", "durable", "torch.save"),
        compared("durable, of DCP async_save", "durable", "dcp"),
        compared("load, of torch.load", "load", "torch.save", Goal(most=1.0)),
        compared("load, of safetensors", "load", "safetensors"),
        Row("memory beside the state", memory, "× the state", Goal(most=1.1), others),
    ]


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_wanted", is_flag=True)
@click.option("--smoke", is_flag=True, help=SMOKE_HELP)
def main(rounds: int, json_wanted: bool, smoke: bool) -> None:
    if smoke:
        shrink(sys.modules[__name__])
        rounds = 1
    found = {}
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        for name, size in SIZES.items():
            found[name] = rows_of = rows(measure(Path(folder), size, rounds))
            if not json_wanted:
                show("a state of %s" % name, rows_of)
                print()
    if json_wanted:
        print(as_json(found))


if __name__ == "__main__":
    main()
