"""Measuring of a command's time and memory, and printing of tables."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

SMOKE_HELP = "the smallest sizes: shows that it works, and measures nothing"


@dataclass(frozen=True)
class Cost:
    #: Seconds.
    wall: float
    cpu: float
    #: Peak resident memory in MB.
    memory: float
    output: str


def outlast(*arguments: str) -> Cost:
    """Run `outlast …` in a new process and return its cost. Raises RuntimeError if it fails."""
    return cost([sys.executable, "-m", "outlast", *arguments])


def cost(command: Sequence[str], limit: float = 3600.0) -> Cost:
    """Run a command; return the cost of its process and of the children that it waited for.

    Raises RuntimeError if it fails, or takes more than `limit` seconds.
    """
    # Without the compiled modules, each command would compile all that it imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise RuntimeError("%s: exit %d\n%s" % (" ".join(command), process.returncode, text))
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


@contextlib.contextmanager
def private_cluster() -> Iterator[Path]:
    """Yield a directory for experiments with its own local cluster, which is stopped afterwards."""
    from outlast.schedulers.local import LocalScheduler

    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        os.environ["OUTLAST_LOCAL_ROOT"] = str(Path(folder) / "cluster")
        try:
            yield Path(folder)
        finally:
            LocalScheduler("bench").stop(force=True)
            del os.environ["OUTLAST_LOCAL_ROOT"]


def shrink(*modules: ModuleType) -> None:
    """Give the sizes in each module's `SMOKE` to its constants of the same names."""
    for module in modules:
        for name, value in module.SMOKE.items():
            assert hasattr(module, name), "%s has no %s" % (module.__name__, name)
            setattr(module, name, value)


def experiment(folder: Path, name: str, params: str) -> Path:
    """Create an experiment's directory with this params.yaml."""
    path = folder / name
    path.mkdir()
    (path / "params.yaml").write_text(params)
    return path


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    print("## %s" % title)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
