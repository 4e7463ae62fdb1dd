"""A script that overwrites one checkpoint file in place is killed in the middle of many of its saves.

It finishes, and repeats at most one save interval after each kill: the save that was being written. `make
storm` kills it a hundred times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.node.event_log import EventLog
from outlast.node.pulse import no_pulse
from outlast.node.snapshots import checkpoint_watch
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.node.snapshots.script_files import ScriptFiles
from outlast.node.snapshots.snapshot_keeper import SnapshotKeeper
from outlast.node.snapshots.snapshot_store import SnapshotStore
from outlast.node.snapshots.start_state import StartState, StartStateFinder

KILLS = int(os.environ.get("OUTLAST_SNAPSHOT_KILLS", "8"))
#: The bytes of a checkpoint file, more or less.
SIZE = 160_000
PATIENCE = 60.0

#: Trains for as long as it takes to read a line, then overwrites its checkpoint, a block at a time.
SCRIPT = """
import io, os, pickle, sys, time, zipfile

path, kind, last = sys.argv[1], sys.argv[2], int(sys.argv[3])

def dump(step):
    if kind == "raw":
        return pickle.dumps((step, os.urandom(%d)))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("ckpt/data/0", os.urandom(%d))
        archive.writestr("ckpt/step", str(step))
    return content.getvalue()

def load(content):
    if kind == "raw":
        return pickle.loads(content)[0]
    return int(zipfile.ZipFile(io.BytesIO(content)).read("ckpt/step"))

step = 0
if os.path.exists(path):
    with open(path, "rb") as file:
        step = load(file.read())
print(step, flush=True)
for line in sys.stdin:
    step += 1
    content = dump(step)
    with open(path, "wb", buffering=0) as file:
        for at in range(0, len(content), 4096):
            file.write(content[at : at + 4096])
            time.sleep(0.0003)
    print(step, flush=True)
    if step == last:
        break
""" % (SIZE, SIZE)


class Harness:
    """Runs attempts as the node program does, without its jobs: prepare, start, keep, kill."""

    def __init__(self, place: Path, kind: str, last: int) -> None:
        self.path, self.kind, self.last = place / "checkpoints" / "ckpt.pt", kind, last
        self.path.parent.mkdir()
        self.script = place / "train.py"
        self.script.write_text(SCRIPT)
        self.store = SnapshotStore(str(place / "snapshots"), ScriptFiles(str(self.path.parent)), 2, 10**9)
        self.events = EventLog(str(place / "events"))
        self.saved = 0

    def attempt(self, before: int | None, kill_at: int | None) -> tuple[int | None, StartState]:
        """Run one attempt; return the step that it began from, None if it could not load its checkpoint.

        With `kill_at` it saves twice more, and is killed when the file of the next save has so many bytes.
        """
        finder = StartStateFinder(self.store, str(self.path.parent), self.events, no_pulse)
        state = finder.prepare(before)
        words = [sys.executable, str(self.script), str(self.path), self.kind, str(self.last)]
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            first = child.stdout.readline()
            if not first:
                child.wait(PATIENCE)
                return None, state
            keeper = SnapshotKeeper(self.store, self.events)
            watch = CheckpointWatch(str(self.path.parent))
            step = int(first)
            while step < self.last:
                if kill_at is not None and step == int(first) + 2:
                    self.kill(child, kill_at)
                    break
                child.stdin.write("\n")
                child.stdin.flush()
                step = int(child.stdout.readline())
                self.saved = step
                self.keep(watch, keeper)
            keeper.finish()
            return int(first), state
        finally:
            child.stdin.close()
            child.stdout.close()
            child.kill()
            child.wait(PATIENCE)

    def keep(self, watch: CheckpointWatch, keeper: SnapshotKeeper) -> None:
        """Let the training compute until the save is kept: saves are farther apart than a snapshot takes."""
        until = time.monotonic() + PATIENCE
        changed = False
        while time.monotonic() < until:
            news = watch.changed()
            keeper.poll(news, watch.quiet_at <= time.monotonic(), urgent=True)
            changed = changed or news
            if changed and keeper.is_settled:
                return
            time.sleep(0.002)
        raise AssertionError("the save was not kept")

    def kill(self, child: subprocess.Popen[str], at: int) -> None:
        assert child.stdin is not None
        before = self.path.stat().st_mtime_ns
        child.stdin.write("\n")
        child.stdin.flush()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            status = self.path.stat()
            if status.st_mtime_ns != before and status.st_size >= at:
                break
        os.kill(child.pid, signal.SIGKILL)
        child.wait(PATIENCE)


@pytest.mark.parametrize("kind", ["zip", "raw"])
def test_a_script_that_saves_in_place_repeats_at_most_one_save_interval_per_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(checkpoint_watch, "_QUIET", 0.005)
    chance = random.Random(13)
    harness = Harness(tmp_path, kind, last=3 * KILLS + 3)
    torn = failed = kills = 0
    repeated = [0]
    before: int | None = None
    while harness.saved < harness.last:
        complete, killed = harness.saved, kills < KILLS
        first, state = harness.attempt(before, chance.randrange(SIZE) if killed else None)
        if first is None:
            # The controller's rule for a state that was found after a kill and could not be checked.
            assert state.older and not state.sure
            before = state.snapshot
            failed += 1
            continue
        before = None
        # The kill hit the save after `complete`.
        repeated.append(complete + 1 - first if kills else 0)
        kills += killed
        torn += killed and harness.path.stat().st_size < SIZE
    counts = (kind, kills, torn, failed, sum(repeated), max(repeated))
    print("%s: %d kills, %d torn files, %d failed loads, %d saves repeated, at most %d per kill" % counts)
    assert harness.saved == harness.last
    assert torn >= KILLS // 2
    assert max(repeated) <= 1
