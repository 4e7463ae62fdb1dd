"""Whole experiments on a real cluster: the commands that a user types, and a training that can be checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contract.scheduler_harness import Rehearsal
from outlast.domain.accounts import LegAccount
from outlast.domain.model import Attempt
from outlast.exchange.experiment import Experiment
from outlast.journal.sqlite_file import is_blank
from outlast.schedulers.base import JobPhase, JobView
from support.experiments import PATIENCE, Lab, open_journal, states

#: A training whose weights depend on every step. It tells each step, so that a test can wait for one.
TRAIN = """\
import json, math, os, sys, time
import outlast

steps, pace, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
state = outlast.load() or {"step": 0, "weights": [0.5] * 8}
print("from", state["step"], flush=True)
while state["step"] < steps:
    step = state["step"] = state["step"] + 1
    state["weights"] = [math.sin(w * 3 + step * (i + 1)) for i, w in enumerate(state["weights"])]
    print("step", step, flush=True)
    time.sleep(pace)
    if outlast.should_stop():
        outlast.save(state, step=step)
        outlast.leave()
    if every and step % every == 0:
        outlast.save(state, step=step)
directory = os.environ.get("OUTLAST_OUTPUT_DIR", ".")
with open(os.path.join(directory, "weights.json"), "w") as file:
    json.dump(state["weights"], file)
"""


class Play:
    """One experiment on the rehearsal's cluster."""

    def __init__(self, cluster: Rehearsal, lab: Lab) -> None:
        self.cluster, self.lab = cluster, lab
        self.directory = Path()
        # The rehearsal has put this process onto its cluster.
        lab.environment.update({k: v for k, v in os.environ.items() if not k.startswith("OUTLAST_")})

    def set(self, *command: str, files: dict[str, str] | None = None, **params: Any) -> Path:
        """Write the experiment. `command` are the words of the training's command line."""
        files = {"train.py": TRAIN} if files is None else files
        plain: dict[str, Any] = {
            "command": " ".join(command),
            "cluster": "here",
            "outputs": ["weights.json"],
            "resources": {"time": "5m", "memory": "100MB", "disk": "100MB"},
            "checkpoints": {"grace": "5s"},
        }
        self.directory = self.lab.experiment("play", files, **{**plain, **params})
        profile = json.dumps({"here": self.cluster.profile_keys})
        (self.directory / "clusters.yaml").write_text(profile + "\n", encoding="utf-8")
        self.cluster.watch(self.directory, self.lab.clusters)
        return self.directory

    def run(self, code: int = 0) -> None:
        """`outlast run` to its end."""
        self.conclude(self.lab.start("run", self.directory), code)

    def conclude(self, process: subprocess.Popen[str], code: int = 0) -> str:
        done = self.lab.finish(process, PATIENCE + 2 * self.cluster.patience)
        assert done.returncode == code, done.output
        return done.output

    def explain(self, run: str = "play") -> dict[str, Any]:
        told: dict[str, Any] = self.lab.outlast("explain", self.directory / run, "--json").json
        return told

    def attempts(self) -> list[Attempt]:
        if is_blank(self.directory / "journal.sqlite"):
            return []
        with open_journal(self.directory) as journal:
            return list(journal.attempts())

    def legs(self) -> list[LegAccount]:
        """The accounts of all starts of all attempts, in order."""
        return [leg for attempt in self.attempts() for leg in attempt.account.legs]

    @property
    def states(self) -> set[str]:
        return set(states(self.directory).values())

    # While it runs.

    def view(self) -> JobView:
        """The one job that is under way."""

        def look() -> JobView | None:
            views = [v for v in self.cluster.scheduler.poll().values() if v.phase is JobPhase.RUNNING]
            return views[0] if len(views) == 1 else None

        return self.until("one running job", look)

    def until(self, what: str, happened: Callable[[], Any]) -> Any:
        return self.lab.until(what, happened)

    def until_step(self, step: int) -> None:
        """The training has begun the step (or one after it) in the attempt or leg that is under way."""
        self.until("step %d" % step, lambda: self.cluster.newest_step(self.directory) >= step)

    def until_ticks_make_it(self, state: str) -> None:
        """Nothing but `outlast tick` looks after it until its run has come to this state."""

        def made() -> bool:
            done = self.lab.outlast("tick", self.directory)
            assert done.returncode == 0, done.output
            return self.states == {state}

        self.until("a run that is " + state, made)

    # What must be true.

    def weights(self, run: str = "play") -> str:
        return Experiment(self.directory).result(run).joinpath("weights.json").read_text()

    def undisturbed(self, *arguments: str) -> str:
        """The weights of the same training, run by hand without a cluster."""
        place = self.lab.root / "undisturbed"
        place.mkdir()
        (place / "train.py").write_text(TRAIN, encoding="utf-8")
        subprocess.run(
            [sys.executable, "train.py", arguments[0], "0", "0"],
            cwd=place,
            env={key: value for key, value in self.lab.environment.items() if not key.startswith("OUTLAST_")},
            stdout=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )
        return (place / "weights.json").read_text()

    def assert_nothing_is_left(self) -> None:
        """No job waits or runs; the ledger of every attempt closes."""
        self.cluster.poll_until(
            lambda views: all(view.phase is JobPhase.ENDED for view in views.values()), self.cluster.scheduler
        )
        told = self.lab.outlast("report", self.directory, "--json").json
        assert told, "no report"
