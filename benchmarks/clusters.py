"""Real schedulers: no-op runs from submission to the end next to a peer, and questions while many jobs wait.

Needs what the tests need: `tests/clusters/NAME up` starts each cluster (Debian, root).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measuring import experiment, outlast, table

SCRIPTS = Path(__file__).parents[1] / "tests" / "clusters"
ROUNDS = 3
ON_SLURM, ON_HTCONDOR = 200, 500
WAITING, WATCHED = 1000, 120.0
#: The programs by which each scheduler is asked; HTCondor is asked through a helper program of Outlast's own.
ASKED = {
    "slurm": ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel"),
    "sge": ("qsub", "qstat", "qacct", "qhost", "qdel", "qconf"),
    "htcondor": (),
}
PROFILES = {
    "slurm": "{scheduler: slurm, queue: main}",
    "sge": "{scheduler: sge, queue: main.q}",
    "htcondor": "{scheduler: htcondor}",
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
    """The same number of jobs by HTCondor's own means: one submit file, `condor_wait` on its log."""
    with cluster("htcondor") as folder:
        folder.chmod(0o777)
        text = (
            "executable = /bin/true\ntransfer_executable = false\nshould_transfer_files = YES\n"
            "request_memory = 50\nrequest_disk = 50MB\nlog = log\nqueue %d\n" % ON_HTCONDOR
        )
        (folder / "submit").write_text(text)
        began = time.monotonic()
        subprocess.run(["condor_submit", "-terse", "submit"], cwd=folder, check=True, capture_output=True)
        subprocess.run(["condor_wait", "log"], cwd=folder, check=True, capture_output=True, timeout=900)
        return time.monotonic() - began


@contextlib.contextmanager
def counted(programs: tuple[str, ...]) -> Iterator[Path]:
    """Calls of these programs leave a line in a file."""
    with tempfile.TemporaryDirectory(prefix="outlast-count-") as folder:
        calls = Path(folder) / "calls"
        calls.touch()
        for program in programs:
            real, wrapper = shutil.which(program), Path(folder) / program
            wrapper.write_text('#!/bin/sh\necho %s >>%s\nexec %s "$@"\n' % (program, calls, real))
            wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        before = os.environ["PATH"]
        os.environ["PATH"] = folder + os.pathsep + before
        try:
            yield calls
        finally:
            os.environ["PATH"] = before


def questions_per_minute(name: str) -> float:
    """While `WAITING` jobs wait that nothing has room for, from a minute after their submission."""
    with cluster(name) as folder, counted(ASKED[name]) as calls:
        path = noop(folder, name, WAITING, 0, cpus="4", memory="3GB")
        blocker = block(name)
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast", "run", str(path)],
            env={**os.environ, "OUTLAST_COUNT_QUESTIONS": str(calls)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(30.0)
            before = len(calls.read_text().splitlines())
            time.sleep(WATCHED)
            made = len(calls.read_text().splitlines()) - before
        finally:
            process.terminate()
            process.wait(timeout=60)
            outlast("cancel", "--all", "-C", str(path))
            unblock(name, blocker)
        return made / WATCHED * 60


def block(name: str) -> str:
    """Nothing starts any more."""
    command = {
        "slurm": ["scontrol", "update", "PartitionName=main", "State=INACTIVE"],
        "sge": ["qmod", "-d", "*"],
    }[name]
    subprocess.run(command, check=True, capture_output=True)
    return name


def unblock(name: str, blocker: str) -> None:
    command = {
        "slurm": ["scontrol", "update", "PartitionName=main", "State=UP"],
        "sge": ["qmod", "-e", "*"],
    }[name]
    subprocess.run(command, check=True, capture_output=True)


def compare(title: str, rows: list[tuple[str, list[float]]]) -> None:
    (_, ours_), (_, theirs) = rows
    lines = [(label, "%.1f" % statistics.median(seconds)) for label, seconds in rows]
    ratio = statistics.median(b / a for a, b in zip(ours_, theirs, strict=True))
    table(title, ("", "seconds"), [*lines, ("speed, as a multiple of the peer's", "%.2f" % ratio)])


def main() -> None:
    slurm = [(ours("slurm", ON_SLURM, n), submitit_array()) for n in range(ROUNDS)]
    compare(
        "%d no-op runs on Slurm, from submission to the end" % ON_SLURM,
        [("outlast", [a for a, _ in slurm]), ("submitit, array", [b for _, b in slurm])],
    )
    print()
    condor = [(ours("htcondor", ON_HTCONDOR, n), plain_htcondor()) for n in range(ROUNDS)]
    compare(
        "%d no-op runs on HTCondor, from submission to the end" % ON_HTCONDOR,
        [("outlast", [a for a, _ in condor]), ("condor_submit and condor_wait", [b for _, b in condor])],
    )
    print()
    rows = [(name, "%.1f" % questions_per_minute(name)) for name in ("slurm", "sge")]
    table("questions to the scheduler per minute while %d jobs wait" % WAITING, ("", "calls"), rows)


if __name__ == "__main__":
    main()
