"""Interruptions of the training scripts in this directory, at the step chosen by the test."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = json.loads(os.environ["OPTIONS"])
OUTPUT = Path(os.environ["OUTLAST_OUTPUT_DIR"])


def strike(step: int) -> None:
    """Interrupt this process if its options name this step. Call it in each step."""
    if OPTIONS.get("kill") == step:
        os.kill(os.getpid(), signal.SIGKILL)
    if OPTIONS.get("stop") == step:
        os.kill(os.getpid(), signal.SIGTERM)
    if OPTIONS.get("limit") == step:
        # A slow step, which ends at the deadline.
        time.sleep(max(0.0, float(os.environ["OUTLAST_DEADLINE"]) - time.time()))


def note(*words: object) -> None:
    """Append a line that the test compares."""
    with (OUTPUT / "notes.txt").open("a", encoding="utf-8") as file:
        print(*words, file=file)


def leave_weights(tensors: Mapping[str, Any]) -> None:
    """Write the final weights, which the test compares."""
    content = [b"%s %s" % (name.encode(), tensor.numpy().tobytes()) for name, tensor in tensors.items()]
    (OUTPUT / "weights").write_bytes(b"".join(content))
