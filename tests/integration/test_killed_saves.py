"""A run whose script overwrites its one checkpoint file is killed in many of its saves, and finishes.

Real commands, jobs of the local cluster. After each kill at most one save interval is repeated: the one whose
save was being written. `make storm` kills each script a hundred times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from outlast.exchange.experiment import Experiment
from outlast.node.snapshots.script_files import ScriptFiles
from outlast.node.snapshots.snapshot_store import SnapshotStore
from support.experiments import Ended, Lab, kill_at_once

KILLS = int(os.environ.get("OUTLAST_SNAPSHOT_KILLS", "3"))
#: The bytes of a checkpoint file, more or less.
SIZE = 160_000
#: Seconds after which a kill, and what follows it, has hung.
PATIENCE_PER_KILL = 120.0

#: Knows nothing of Outlast but a directory. It computes each step until the test has written its number into
#: the file `computed`, and writes what it does into the file `story`.
SCRIPT = """\
import io, os, pickle, sys, time, zipfile

kind, place, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "ckpt.pt")

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

def tell(*words):
    with open(os.path.join(place, "story"), "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

step = 0
if "--resume" in sys.argv:
    with open(path, "rb") as file:
        step = load(file.read())
tell("began", step, os.getpid())
print("began at step", step, flush=True)
while step < last:
    step += 1
    while int(open(os.path.join(place, "computed")).read() or 0) < step:
        time.sleep(0.01)
    content = dump(step)
    with open(path, "wb", buffering=0) as file:
        for at in range(0, len(content), 4096):
            file.write(content[at : at + 4096])
            time.sleep(0.004)
    tell("saved", step, os.getpid())
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "out.txt"), "w") as file:
    file.write("after step %%d" %% step)
""" % (SIZE, SIZE)


class Scene:
    """A run of the script, and what the test knows of it."""

    def __init__(self, lab: Lab, kind: str, last: int) -> None:
        self.lab = lab
        self.computed(0)
        self.directory = lab.experiment(
            "kills",
            {"train.py": SCRIPT},
            command="python3 train.py %s %s %d" % (kind, lab.root, last),
            outputs=["out.txt"],
            checkpoints={"resume": "--resume"},
            limits={"attempts": 1000},
        )
        experiment = Experiment(self.directory)
        self.path = experiment.checkpoints("kills") / "ckpt.pt"
        self.store = SnapshotStore(
            str(experiment.snapshots("kills")), ScriptFiles(str(self.path.parent)), 2, 10**9
        )

    def computed(self, step: int) -> None:
        """Let the script save this step."""
        temporary = self.lab.root / "computed.tmp"
        temporary.write_text(str(step))
        temporary.rename(self.lab.root / "computed")

    def story(self) -> list[tuple[str, int, int]]:
        path = self.lab.root / "story"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(word, int(step), int(pid)) for word, step, pid in map(str.split, lines)]

    def wait_until_begun(self, starts: int) -> tuple[int, int]:
        """Wait until the script could load its checkpoint once more; return its step and process id."""

        def find() -> tuple[int, int] | None:
            begun = [(step, pid) for word, step, pid in self.story() if word == "began"]
            return begun[starts] if len(begun) > starts else None

        found: tuple[int, int] = self.lab.until("start %d of the training" % starts, find)
        return found

    def wait_until_kept(self, step: int, pid: int) -> None:
        """Wait until the save of this step is complete, and until there is a snapshot of it."""
        self.lab.until("save %d" % step, lambda: ("saved", step, pid) in self.story())
        status = self.path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        self.lab.until(
            "a snapshot of save %d" % step,
            lambda: any(one.files["ckpt.pt"].stamp == stamp for one in self.store.snapshots()),
        )

    def save_in_part(self, step: int, size: int) -> None:
        """Let the script save this step, and wait until it has written so many bytes, or a few more."""
        before = self.path.stat().st_mtime_ns
        self.computed(step)

        def is_written() -> bool:
            status = self.path.stat()
            return status.st_mtime_ns != before and status.st_size >= size

        self.lab.until("%d bytes of a save" % size, is_written)

    @contextmanager
    def running(self) -> Iterator[Future[Ended]]:
        """Run `outlast run`, and read its output."""
        process = self.lab.start("run", self.directory)
        with ThreadPoolExecutor(1) as pool:
            try:
                yield pool.submit(self.lab.finish, process, PATIENCE_PER_KILL * (KILLS + 1))
            except BaseException:
                process.kill()
                raise


@pytest.mark.parametrize("kind", ["zip", "raw"])
def test_a_run_that_is_killed_while_it_saves_repeats_at_most_one_save_interval_per_kill(
    lab: Lab, kind: str
) -> None:
    chance = random.Random(13)
    last = 2 * KILLS + 2
    scene = Scene(lab, kind, last)
    repeated, torn, complete = [0], 0, 0
    with scene.running() as ended:
        for kill in range(KILLS):
            step, pid = scene.wait_until_begun(kill)
            repeated.append(complete + 1 - step if kill else 0)
            complete = step + 1
            scene.computed(complete)
            scene.wait_until_kept(complete, pid)
            job = lab.running_job(scene.directory)
            scene.save_in_part(complete + 1, chance.randrange(SIZE))
            if chance.random() < 0.5:
                kill_at_once(pid)
            else:
                lab.scheduler(scene.directory).kill(job.token)
            torn += ("saved", complete + 1, pid) not in scene.story()
        step, pid = scene.wait_until_begun(KILLS)
        repeated.append(complete + 1 - step)
        scene.computed(last)
        done = ended.result()
    attempts = len(list((scene.directory / "logs").rglob("*.log")))
    counts = (kind, KILLS, torn, attempts, sum(repeated), max(repeated))
    print("%s: %d kills, %d torn files, %d attempts, %d saves repeated, at most %d per kill" % counts)
    assert done.returncode == 0, done.output
    assert (scene.directory / "results/kills/out.txt").read_text() == "after step %d" % last
    assert torn >= 0.8 * KILLS
    assert max(repeated) <= 1
