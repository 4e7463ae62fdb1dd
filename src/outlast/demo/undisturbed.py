"""The training run without interruptions: one process from start to end."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError
from outlast.exchange.attempt_log import last_progress
from outlast.node.environment import resolve_python
from outlast.node.protocol import Variable

#: Seconds after which it is killed.
LONGEST = 300.0
#: Seconds between polls of its progress.
POLL_SECONDS = 0.25


def train(directory: Path, command: str, show: Callable[[Mapping[str, Any]], None]) -> float:
    """Run the command in this directory and return its duration in seconds. Raises OutlastError.

    `show` is called with the latest progress record.
    """
    progress, log = directory / "progress.jsonl", directory / "train.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    environment[Variable.PROGRESS_FILE] = str(progress)
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            resolve_python(shlex.split(command), environment),
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = _follow(process, progress, show, began + LONGEST)
        finally:
            process.kill()
            process.wait()
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        how = "took longer than %d s" % LONGEST if code is None else "ended with exit code %d" % code
        raise OutlastError(
            "the undisturbed training run %s; its last lines:\n%s"
            % (how, "\n".join("  | " + x for x in lines))
        )
    return time.monotonic() - began


def _follow(
    process: subprocess.Popen[bytes], progress: Path, show: Callable[[Mapping[str, Any]], None], until: float
) -> int | None:
    """Return the exit code, or None if the process has not ended by `until`."""
    while time.monotonic() < until:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            latest = last_progress(progress)
            if latest is not None:
                show(latest)
    return None
