"""Run a command and tell what it cost; print tables."""

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


@dataclass(frozen=True)
class Cost:
    wall: float
    cpu: float
    #: Peak resident memory in MB.
    memory: float
    output: str


def outlast(*arguments: str) -> Cost:
    """`outlast …` in a process of its own. Raises if it fails."""
    return cost([sys.executable, "-m", "outlast", *arguments])


def cost(command: Sequence[str], limit: float = 3600.0) -> Cost:
    """Of a process, and those that it has waited for. Raises if it fails, or is not done after `limit` s."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        clock = threading.Timer(limit, process.kill)
        clock.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            clock.cancel()
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise RuntimeError("%s: exit %d\n%s" % (" ".join(command), process.returncode, text))
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


@contextlib.contextmanager
def private_cluster() -> Iterator[Path]:
    """A directory for experiments, and a local cluster of its own that is gone afterwards."""
    from outlast.schedulers.local import LocalScheduler

    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        os.environ["OUTLAST_LOCAL_ROOT"] = str(Path(folder) / "cluster")
        try:
            yield Path(folder)
        finally:
            LocalScheduler("bench").stop(force=True)
            del os.environ["OUTLAST_LOCAL_ROOT"]


def experiment(folder: Path, name: str, params: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "params.yaml").write_text(params)
    return path


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("## %s" % title)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
