"""Attempts of a training script as processes, each forked from one that has imported the framework.

Importing a framework takes seconds, longer than the tiny training runs of these tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.training.env import EXIT_CONTINUE
from support import clusters

#: Timeout in seconds for everything here, generous for a busy machine.
PATIENCE = 120.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
#: Importing `torch` leaves out what the first optimizer imports.
_OF_TORCH = ("torch", "torch._dynamo")
#: Seed of all random choices.
SEED = int(os.environ.get("OUTLAST_STORM_SEED", random.SystemRandom().randrange(10**6)))


@dataclass(frozen=True)
class Ended:
    """The exit code of an attempt, or the negative number of the signal that ended it, and its output."""

    code: int
    printed: str


class Parent:
    """The process from which attempts are forked; `modules` are imported in it."""

    def __init__(self, *modules: str, **environment: str) -> None:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
        # Another number of threads would change the last bits of results.
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).parents[1] / "trainings" / "parent.py"),
                *_OF_TORCH,
                *modules,
            ],
            env={**outside, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._read_message()

    def _read_message(self) -> Any:
        """Return the next JSON message of the process. Fails the test if none arrives in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert ready, "no message for %g s" % PATIENCE
        return json.loads(self._process.stdout.readline() or '"the process has ended"')

    def fork(self, script: Path, log: Path, environment: Mapping[str, str]) -> Ended:
        """Run a script as a forked attempt and return its result; its output goes to `log`."""
        assert self._process.stdin is not None
        order = {"script": str(script), "log": str(log), "environment": dict(environment)}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        code = self._read_message()
        assert type(code) is int, code
        return Ended(code, log.read_text(encoding="utf-8", errors="replace"))

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill the process and an attempt that is still running."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Several(Parent):
    """Attempts of several processes each, started as torchrun does: one forked from each parent."""

    def __init__(self, *parents: Parent) -> None:
        self.parents = parents

    def fork(self, script: Path, log: Path, environment: Mapping[str, str]) -> Ended:
        with socket.create_server(("127.0.0.1", 0)) as server:
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        rendezvous.update(TORCHELASTIC_RUN_ID="attempt", WORLD_SIZE=str(len(self.parents)))

        def one(rank: int) -> Ended:
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **rendezvous}
            return self.parents[rank].fork(
                script, log.with_suffix(".%d.log" % rank), {**environment, **place}
            )

        with ThreadPoolExecutor(len(self.parents)) as pool:
            ended = list(pool.map(one, range(len(self.parents))))
        printed = "\n".join(each.printed for each in ended)
        assert len({each.code for each in ended}) == 1, printed
        return Ended(ended[0].code, printed)


def from_docs(page: str, place: Path) -> Path:
    """Write the script `train.py` that a page of the documentation shows, and return its path."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# train\.py\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, page
    script = place / "train.py"
    script.write_text(found[1], encoding="utf-8")
    return script


def need(*modules: str) -> None:
    """Skip the test module if a module is not installed; fail instead in CI."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        clusters.not_here("%s is not installed" % ", ".join(missing))


class Run:
    """A run of a script whose attempts share checkpoints and outputs, as in a job.

    The options of the run and of the attempt reach the script as JSON in the variable OPTIONS.
    """

    def __init__(self, parent: Parent, script: Path, place: Path, **options: Any) -> None:
        self._parent = parent
        self._script = script
        self._place = place
        self._options = options
        self._attempts = 0
        self.output = place / "output"
        self.output.mkdir(parents=True)

    def attempt(self, seconds: float = 1000.0, **options: Any) -> Ended:
        """Run one attempt and return its result; `seconds` is its time limit."""
        self._attempts += 1
        environment = {
            "OPTIONS": json.dumps({**self._options, **options}),
            "OUTLAST_TOKEN": uuid.uuid4().hex,
            "OUTLAST_ATTEMPT": str(self._attempts),
            "OUTLAST_DEADLINE": str(time.time() + seconds),
            "OUTLAST_TIME_LEFT": str(seconds),
            "OUTLAST_CLOCK": "%s %f" % (_BOOT_ID, time.monotonic()),
            "OUTLAST_GRACE": "1",
            "OUTLAST_SAVE_EVERY": "0",
            "OUTLAST_CHECKPOINT_DIR": str(self._place / "checkpoints"),
            "OUTLAST_OUTPUT_DIR": str(self.output),
            "OUTLAST_PROGRESS_FILE": str(self._place / "progress.jsonl"),
        }
        return self._parent.fork(self._script, self._place / ("%d.log" % self._attempts), environment)

    @property
    def weights(self) -> bytes:
        """The final weights."""
        return (self.output / "weights").read_bytes()

    def logged(self, tag: str) -> list[tuple[int, float]]:
        """Return steps and values in the TensorBoard logs, including those that TensorBoard hides."""
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

        for file in (self.output / "logs").glob("events.*"):
            assert b"brain.Event" in next(iter(RawEventFileLoader(str(file)).Load())), (
                "the file has no header"
            )
        logs = EventAccumulator(str(self.output / "logs"), {SCALARS: 0}, purge_orphaned_data=False)
        return [(event.step, event.value) for event in logs.Reload().Scalars(tag)]

    @property
    def notes(self) -> set[str]:
        """The lines that attempts have noted, without duplicates: repeated steps must give the same lines."""
        return set((self.output / "notes.txt").read_text(encoding="utf-8").splitlines())

    @property
    def progress(self) -> dict[str, Any]:
        """The newest progress."""
        newest: dict[str, Any] = json.loads((self._place / "progress.json").read_text(encoding="utf-8"))
        return newest


Make = Callable[..., Run]


def maker(parent: Parent, script: Path, place: Path, **always: Any) -> Make:
    """Return a function that makes runs of a script, each with a name and options."""
    return lambda name, **options: Run(parent, script, place / name, **always, **options)


def finish(run: Run) -> Run:
    """Run one attempt, which must finish."""
    ended = run.attempt()
    assert ended.code == 0, ended.printed
    return run


def storm(run: Run, steps: int, troubles: str) -> None:
    """Run attempts interrupted at random steps (limit, stop, kill), then one that finishes.

    The last interruption comes in the last third, but not in the last steps: a run stopped there may finish.
    """
    chance, names = random.Random(SEED), troubles.split()
    chance.shuffle(names)
    late = 2 * steps // 3
    places = [
        *sorted(chance.sample(range(1, late), len(names) - 1)),
        chance.randrange(late, max(late + 1, steps - 3)),
    ]
    for trouble, step in zip(names, places, strict=True):
        ended = run.attempt(seconds=5.0 if trouble == "limit" else 1000.0, **{trouble: step})
        message = "%s at %d: %d\n%s" % (trouble, step, ended.code, ended.printed)
        assert ended.code == (-signal.SIGKILL if trouble == "kill" else EXIT_CONTINUE), message
    finish(run)


def alone_and_hurt(make: Make, steps: int, troubles: str, **options: Any) -> tuple[Run, Run]:
    """Run the same script undisturbed and with interruptions; check that both end with the same bits."""
    alone, hurt = finish(make("alone", **options)), make("hurt", **options)
    storm(hurt, steps, troubles)
    same_end(alone, hurt)
    return alone, hurt


def same_end(alone: Run, hurt: Run) -> None:
    """Check that both runs have the same notes and final weights."""
    assert hurt.notes == alone.notes
    assert hurt.weights == alone.weights
