"""Run whole experiments on a real cluster with the commands that a user types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contract.scheduler_harness import SchedulerHarness
from outlast.domain.accounts import LegAccount
from outlast.domain.model import Attempt
from outlast.exchange.experiment import Experiment
from outlast.journal.sqlite_file import is_blank
from outlast.schedulers.base import JobPhase, JobView
from support.experiments import PATIENCE, Lab, open_journal, states

#: A training script whose weights depend on every step. It prints each step, so that a test can wait for one.
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


class ClusterExperiment:
    """An experiment with one run, `train`, on the cluster of a harness."""

    def __init__(self, cluster: SchedulerHarness, lab: Lab) -> None:
        self.cluster, self.lab = cluster, lab
        self.directory = Path()
        # The harness has set the variables of its cluster in this process.
        lab.environment.update({k: v for k, v in os.environ.items() if not k.startswith("OUTLAST_")})

    def write(self, *command: str, files: dict[str, str] | None = None, **params: Any) -> Path:
        """Write the experiment and return its directory. `command` runs the training script."""
        files = {"train.py": TRAIN} if files is None else files
        plain: dict[str, Any] = {
            "command": " ".join(command),
            "cluster": "here",
            "outputs": ["weights.json"],
            "resources": {"time": "5m", "memory": "100MB", "disk": "100MB"},
            "checkpoints": {"grace": "5s"},
        }
        self.directory = self.lab.experiment("train", files, **{**plain, **params})
        profile = json.dumps({"here": self.cluster.profile_keys})
        (self.directory / "clusters.yaml").write_text(profile + "\n", encoding="utf-8")
        self.cluster.watch(self.directory, self.lab.clusters)
        return self.directory

    def run(self, code: int = 0) -> None:
        """Run `outlast run` until it exits with `code`."""
        self.finish(self.lab.start("run", self.directory), code)

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """Wait until a command exits with `code`, and return its output."""
        done = self.lab.finish(process, PATIENCE + 2 * self.cluster.patience)
        assert done.returncode == code, done.output
        return done.output

    def explain(self, run: str = "train") -> dict[str, Any]:
        explained: dict[str, Any] = self.lab.outlast("explain", self.directory / run, "--json").json
        return explained

    def attempts(self) -> list[Attempt]:
        if is_blank(self.directory / "journal.sqlite"):
            return []
        with open_journal(self.directory) as journal:
            return list(journal.attempts())

    def legs(self) -> list[LegAccount]:
        """Return the accounts of all starts of all attempts, in order."""
        return [leg for attempt in self.attempts() for leg in attempt.account.legs]

    @property
    def states(self) -> set[str]:
        return set(states(self.directory).values())

    # While it runs.

    def running_job(self) -> JobView:
        """Wait until exactly one job runs, and return its view."""

        def poll() -> JobView | None:
            views = [v for v in self.cluster.scheduler.poll().values() if v.phase is JobPhase.RUNNING]
            return views[0] if len(views) == 1 else None

        return self.wait_for("one running job", poll)

    def wait_for(self, what: str, happened: Callable[[], Any]) -> Any:
        return self.lab.until(what, happened)

    def wait_for_step(self, step: int) -> None:
        """Wait until the current leg has begun this step or a later one."""
        self.wait_for("step %d" % step, lambda: self.cluster.newest_step(self.directory) >= step)

    def tick_until(self, state: str) -> None:
        """Run `outlast tick` again and again until the run is in this state."""

        def has_state() -> bool:
            done = self.lab.outlast("tick", self.directory)
            assert done.returncode == 0, done.output
            return self.states == {state}

        self.wait_for("a run that is " + state, has_state)

    # Checks.

    def weights(self, run: str = "train") -> str:
        return Experiment(self.directory).result(run).joinpath("weights.json").read_text()

    def reference_weights(self, *arguments: str) -> str:
        """Return the weights of the same training, run without a cluster and without interruption."""
        place = self.lab.root / "reference"
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
        """Check that no job waits or runs and that the report can be made."""
        self.cluster.poll_until(
            lambda views: all(view.phase is JobPhase.ENDED for view in views.values()), self.cluster.scheduler
        )
        report = self.lab.outlast("report", self.directory, "--json").json
        assert report, "no report"
