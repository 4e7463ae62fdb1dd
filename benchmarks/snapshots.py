"""The cost of snapshots for a script that overwrites a checkpoint of 1 GB in place, against taking none.

Run `python benchmarks/snapshots.py`, with `--rounds N` or `--json`. The script saves, computes for a while,
and saves again, beside a node program that watches the directory with and without snapshots; rounds
alternate. Files are written to the directory for temporary files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from measuring import SMOKE_HELP, shrink
from verdicts import Row, as_json, in_turns, ratio, show

from outlast.node.event_log import EventLog
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.node.snapshots.script_files import ScriptFiles
from outlast.node.snapshots.snapshot_keeper import SnapshotKeeper
from outlast.node.snapshots.snapshot_store import SnapshotStore

SIZE = 1 << 30
SAVES = 3
#: Processor seconds that the script computes between two saves.
COMPUTES = 10.0
SMOKE: dict[str, Any] = {"SIZE": 1 << 20, "SAVES": 2, "COMPUTES": 2.0}
MOST = 2
#: Seconds after which a script has hung.
PATIENCE = 1800.0

#: Prints the seconds in its saves, and the seconds of everything.
SCRIPT = """
import os, sys, time
path, size, saves, computes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
block, blocked, began = os.urandom(1 << 20), 0.0, time.monotonic()
for save in range(saves):
    start = time.monotonic()
    with open(path, "wb") as file:
        file.write(b"%020d" % save)
        for _ in range(size >> 20):
            file.write(block)
    blocked += time.monotonic() - start
    until = time.process_time() + computes
    while time.process_time() < until:
        sum(range(1000))
print(blocked, time.monotonic() - began)
"""

Result = dict[str, float]


def measure(place: Path, kept: bool) -> Result:
    """Run the script once; return its seconds, and what the snapshots cost."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root = Path(folder)
        checkpoints = root / "checkpoints"
        checkpoints.mkdir()
        store = SnapshotStore(str(root / "snapshots"), ScriptFiles(str(checkpoints)), MOST, 20 * 10**9)
        keeper = SnapshotKeeper(store, EventLog(str(root / "events"))) if kept else None
        numbers = (SIZE, SAVES, COMPUTES)
        command = [sys.executable, "-c", SCRIPT, str(checkpoints / "ckpt.pt"), *map(str, numbers)]
        spent = time.process_time()
        out = _supervise(command, CheckpointWatch(str(checkpoints)), keeper)
        spent = time.process_time() - spent
        blocked, total = map(float, out.split())
        files = [path for path in (root / "snapshots").rglob("*") if path.is_file()]
        sizes = {path.stat().st_ino: path.stat().st_size for path in files}
        return {
            "blocked": blocked,
            "total": total,
            "cpu": spent,
            "bytes": sum(sizes.values()),
            "files": len(files),
            "snapshots": len(store.snapshots()),
        }


def _supervise(command: list[str], watch: CheckpointWatch, keeper: SnapshotKeeper | None) -> str:
    """Run the script as `supervise` does, and return its output."""
    until = time.monotonic() + PATIENCE
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and time.monotonic() < until:
                changed = watch.changed()
                if keeper is not None:
                    keeper.poll(changed, watch.quiet_at <= time.monotonic())
                time.sleep(watch.pause)
        finally:
            if keeper is not None:
                keeper.finish()
            process.kill()
        assert process.stdout is not None
        return process.stdout.read()


def rows(found: dict[str, list[Result]]) -> list[Row]:
    kept, without = found["kept"], found["without"]

    def compared(name: str, what: str) -> Row:
        pairs = [", ".join("%.2f" % one[what] for one in results) for results in (kept, without)]
        value = ratio((one[what] for one in kept), (one[what] for one in without))
        return Row(name, value, "×", None, "s: %s against %s" % tuple(pairs))

    last = kept[-1]
    return [
        compared("seconds in %d saves, of those without snapshots" % SAVES, "blocked"),
        compared("seconds of the script, of those without snapshots", "total"),
        Row(
            "processor time of the node program", last["cpu"], "s", None, "%.2f without" % without[-1]["cpu"]
        ),
        Row("disk that the snapshots take", last["bytes"] / SIZE, "× the checkpoint"),
        Row("files of the snapshots", last["files"], "", None, "%d snapshots" % last["snapshots"]),
    ]


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_wanted", is_flag=True)
@click.option("--smoke", is_flag=True, help=SMOKE_HELP)
def main(rounds: int, json_wanted: bool, smoke: bool) -> None:
    if smoke:
        shrink(sys.modules[__name__])
        rounds = 1
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        cases = {"without": False, "kept": True}
        measured = in_turns(
            {name: lambda kept=kept: measure(Path(folder), kept) for name, kept in cases.items()}, rounds
        )
    found = rows(measured)
    if json_wanted:
        print(as_json({"snapshots": found}))
    else:
        show("a checkpoint of %d MB, overwritten in place" % (SIZE >> 20), found)


if __name__ == "__main__":
    main()
