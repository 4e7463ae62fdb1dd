"""Every benchmark of `make bench` runs to its end at the smallest sizes. The figures then mean nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import clusters

ROOT = Path(__file__).resolve().parents[2]
#: Longer than anything takes on a busy machine.
PATIENCE = 300.0
#: What each benchmark must print: the titles of its tables, or with `--json` the names of its groups.
RUNS = {
    ("run.py", "--only", "throughput"): ["local no-op runs per second", "ratio (median of 1 rounds)"],
    ("run.py", "--only", "scale"): ["5 runs in one experiment", "controller pass, 5 running", "journal: "],
    ("run.py", "--only", "growth"): ["2 to 4 runs in one experiment", "cancel --all", "report --json"],
    ("reading.py",): ["opening a tar of 2 tars with 20 members", "shuffled reads of 20 items"],
    ("images.py", "--json"): ["images"],
    ("checkpoints.py", "--json"): ["1 MB"],
    ("snapshots.py", "--json"): ["snapshots"],
    ("transfers.py", "--json", "--only", "rates", "--only", "digest"): ["rates", "digest"],
    ("transfers.py", "--json", "--only", "closing", "--only", "unpacking"): ["closing", "unpacking"],
    ("transfers.py", "--json", "--only", "stall", "--only", "capped"): ["stall", "capped"],
    ("gateway.py", "--json", "--only", "recording", "--only", "waiting"): ["recording", "waiting"],
    ("gateway.py", "--json", "--only", "overhead"): ["overhead"],
    ("gateway.py", "--json", "--only", "peers"): ["peers"],
}
ON_CLUSTERS = {
    "slurm": ["2 no-op runs on Slurm", "questions to slurm per minute while 3 jobs wait"],
    "sge": ["questions to sge per minute while 3 jobs wait"],
    "htcondor": ["2 no-op runs on HTCondor", "questions to htcondor per minute while 3 jobs wait"],
}
#: Packages that are compared with, beside those that all tests need.
PEERS = {
    "run.py": ["submitit"],
    "clusters.py": ["submitit"],
    "images.py": ["torch", "PIL"],
    "checkpoints.py": ["torch", "safetensors"],
    "transfers.py": ["pycurl", "requests"],
    "gateway.py": ["celery"],
}


def _printed_by(program: str, *options: str) -> str:
    """Run a benchmark at the smallest sizes and return what it prints."""
    for package in PEERS.get(program, ()):
        if importlib.util.find_spec(package) is None:
            clusters.not_here("%s is not installed; `make bench` installs it" % package)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / program), "--smoke", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", RUNS, ids=" ".join)
def test_a_benchmark_runs_to_its_end_at_the_smallest_sizes(command: tuple[str, ...]) -> None:
    printed = _printed_by(*command)
    if "--json" not in command:
        assert [part for part in RUNS[command] if part not in printed] == []
        return
    found = json.loads(printed)
    assert list(found) == RUNS[command]
    for name, rows in found.items():
        measured = [row for row in rows if row["value"] is not None]
        if not measured:  # a server that cannot be started here
            clusters.not_here("%s: %s" % (name, rows[0]["beside"]))
        # A peer program that is not installed has a row of its own without a value.
        assert {row["verdict"] for row in measured} <= {"", "met", "MISSED"}


@pytest.mark.parametrize("name", ON_CLUSTERS)
def test_the_benchmark_of_real_schedulers_runs_to_its_end_at_the_smallest_sizes(name: str) -> None:
    clusters.environment(name)
    parts = ["questions-%s" % name] if name == "sge" else [name, "questions-%s" % name]
    with clusters.exclusive(name):
        printed = _printed_by("clusters.py", *(word for part in parts for word in ("--only", part)))
    assert [part for part in ON_CLUSTERS[name] if part not in printed] == []


def test_no_benchmark_of_make_bench_is_left_out() -> None:
    rule = (ROOT / "Makefile").read_text().partition("\nbench:")[2].partition("\n\n")[0]
    assert set(re.findall(r"benchmarks/(\w+\.py)", rule)) == {command[0] for command in RUNS} | {
        "clusters.py"
    }
