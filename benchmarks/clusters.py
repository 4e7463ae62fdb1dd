"""Real schedulers: no-op runs from submission to the end next to a peer, and questions while many jobs wait.

Needs what the tests need: `tests/clusters/NAME up` starts each cluster (Debian, root).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measuring import SMOKE_HELP, experiment, outlast, shrink, table

from outlast.controller.supervisor import control
from outlast.exchange.experiment import Experiment
from outlast.schedulers import command_runner

SCRIPTS = Path(__file__).parents[1] / "tests" / "clusters"
ROUNDS = 3
ON_SLURM, ON_HTCONDOR = 200, 500
WAITING, WATCHED = 1000, 120.0
#: About what the node program weighs, in bytes.
CODE = 150_000
#: What keeps jobs waiting: a closed queue, or more than any host has.
BLOCKING = {
    "slurm": (
        ["scontrol", "update", "PartitionName=main", "State=DOWN"],
        ["scontrol", "update", "PartitionName=main", "State=UP"],
    ),
    "sge": (["qmod", "-d", "*"], ["qmod", "-e", "*"]),
}
IMPOSSIBLE: dict[str, dict[str, str]] = {"slurm": {}, "sge": {}, "htcondor": {"cpus": "64"}}
PROFILES = {
    "slurm": "{scheduler: slurm, queue: main}",
    "sge": "{scheduler: sge, queue: main.q}",
    "htcondor": "{scheduler: htcondor}",
}
SMOKE: dict[str, Any] = {
    "ROUNDS": 1,
    "ON_SLURM": 2,
    "ON_HTCONDOR": 2,
    "WAITING": 3,
    "WATCHED": 1.0,
    "PROFILES": {
        "slurm": "{scheduler: slurm, queue: main, interval: 1s, lag: 1s}",
        "sge": "{scheduler: sge, queue: main.q, interval: 1s, lag: 1s}",
        "htcondor": "{scheduler: htcondor, interval: 1s}",
    },
}


@contextlib.contextmanager
def cluster(name: str) -> Iterator[Path]:
    """A directory for experiments that the cluster's jobs can use; clients here are on the cluster."""
    up = subprocess.run([str(SCRIPTS / name), "up"], capture_output=True, text=True, check=True)
    script = ". '%s'; env -0" % up.stdout.split()[-1]
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    before = dict(os.environ)
    os.environ.update(entry.split("=", 1) for entry in told.stdout.split("\0") if "=" in entry)
    folder = Path(tempfile.mkdtemp(prefix="outlast-bench-", dir="/var/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


def noop(folder: Path, name: str, runs: int, round_: int, **resources: str) -> Path:
    wanted = {"time": "5m", "memory": "50MB", "disk": "50MB", **resources}
    asked = ", ".join("%s: %s" % item for item in wanted.items())
    text = 'name: noop\ncommand: "true"\nruns: %d\ncluster: bench\nresources: {%s}\n' % (runs, asked)
    path = experiment(folder, "noop-%d" % round_, text)
    (path / "clusters.yaml").write_text("bench: %s\n" % PROFILES[name])
    return path


def ours(name: str, runs: int, round_: int) -> float:
    """Submit to checked results, the command's own start included."""
    with cluster(name) as folder:
        return outlast("run", str(noop(folder, name, runs, round_))).wall


def submitit_array() -> float:
    import submitit

    with cluster("slurm") as folder:
        executor = submitit.SlurmExecutor(folder)
        executor.update_parameters(time=5, partition="main", mem="50MB", array_parallelism=ON_SLURM)
        began = time.monotonic()
        jobs = executor.map_array(bool, range(ON_SLURM))
        for job in jobs:
            job.result()
        return time.monotonic() - began


def plain_htcondor() -> float:
    """The same number of jobs by HTCondor's own means: one submit file, `condor_wait` on its log.

    As any training's, they bring a file along, start Python and bring a directory back.
    """
    with cluster("htcondor") as folder:
        folder.chmod(0o777)
        (folder / "code.tar").write_bytes(os.urandom(CODE))
        (folder / "job.py").write_text("import os\nos.mkdir('out')\nopen('out/done', 'w').close()\n")
        for number in range(ON_HTCONDOR):
            (folder / str(number)).mkdir(mode=0o777)
        text = (
            "executable = /usr/bin/python3\ntransfer_executable = false\narguments = job.py\n"
            "initialdir = %s/$(ProcId)\ntransfer_input_files = %s/job.py, %s/code.tar\n"
            "should_transfer_files = YES\nwhen_to_transfer_output = ON_EXIT\ntransfer_output_files = out\n"
            "request_memory = 50\nrequest_disk = 50MB\nlog = %s/log\nqueue %d\n"
            % (folder, folder, folder, folder, ON_HTCONDOR)
        )
        (folder / "submit").write_text(text)
        began = time.monotonic()
        subprocess.run(["condor_submit", "-terse", "submit"], cwd=folder, check=True, capture_output=True)
        subprocess.run(["condor_wait", "log"], cwd=folder, check=True, capture_output=True, timeout=900)
        return time.monotonic() - began


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The programs by which a scheduler is asked in this process: all of them are started at one place."""
    made: list[str] = []

    def start(arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
        made.append(arguments[0])
        return subprocess.Popen(arguments, **options)

    wrapped = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})
    before, command_runner.subprocess = command_runner.subprocess, wrapped  # type: ignore[attr-defined, assignment]
    try:
        yield made
    finally:
        command_runner.subprocess = before  # type: ignore[attr-defined]


def questions_per_minute(name: str) -> float:
    """While `WAITING` jobs wait that nothing has room for, once they have been submitted."""
    with cluster(name) as folder, blocked(name), counted() as made:
        experiment_ = Experiment(noop(folder, name, WAITING, 0, **IMPOSSIBLE[name]))
        outlast("submit", str(experiment_.root))
        with control(experiment_, "bench") as session:
            session.step()
            made.clear()
            until = time.monotonic() + WATCHED
            while time.monotonic() < until:
                session.wait()
                session.step()
            asked = len(made)
        outlast("cancel", "--all", "-C", str(experiment_.root))
        return asked / WATCHED * 60


@contextlib.contextmanager
def blocked(name: str) -> Iterator[None]:
    """Nothing starts meanwhile."""
    stop, go = BLOCKING.get(name, ([], []))
    if stop:
        subprocess.run(stop, check=True, capture_output=True)
    try:
        yield
    finally:
        if go:
            subprocess.run(go, check=True, capture_output=True)


def compare(title: str, rows: list[tuple[str, list[float]]]) -> None:
    (_, ours_), (_, theirs) = rows
    lines = [(label, "%.1f" % statistics.median(seconds)) for label, seconds in rows]
    ratio = statistics.median(b / a for a, b in zip(ours_, theirs, strict=True))
    table(title, ("", "seconds"), [*lines, ("speed, as a multiple of the peer's", "%.2f" % ratio)])


def on_slurm(rounds: int) -> None:
    pairs = [(ours("slurm", ON_SLURM, n), submitit_array()) for n in range(rounds)]
    compare(
        "%d no-op runs on Slurm, from submission to the end" % ON_SLURM,
        [("outlast", [a for a, _ in pairs]), ("submitit, array", [b for _, b in pairs])],
    )


def on_htcondor(rounds: int) -> None:
    pairs = [(ours("htcondor", ON_HTCONDOR, n), plain_htcondor()) for n in range(rounds)]
    compare(
        "%d no-op runs on HTCondor, from submission to the end" % ON_HTCONDOR,
        [("outlast", [a for a, _ in pairs]), ("condor_submit and condor_wait", [b for _, b in pairs])],
    )


def questions(name: str) -> None:
    asked = questions_per_minute(name)
    title = "questions to %s per minute while %d jobs wait" % (name, WAITING)
    table(title, ("", "calls", "goal"), [("outlast", "%.1f" % asked, "≤ 4")])


def main() -> None:
    parts: dict[str, Callable[[int], None]] = {"slurm": on_slurm, "htcondor": on_htcondor}
    parts.update({"questions-%s" % name: lambda _, name=name: questions(name) for name in PROFILES})  # type: ignore[misc]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=parts, help="this part (repeatable)")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--smoke", action="store_true", help=SMOKE_HELP)
    chosen = parser.parse_args()
    if chosen.smoke:
        shrink(sys.modules[__name__])
    for name in chosen.only or parts:
        parts[name](chosen.rounds or ROUNDS)
        print(flush=True)


if __name__ == "__main__":
    main()
