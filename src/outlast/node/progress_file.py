"""What a training last told: its step, for those who want to see a number, and whether it has left."""

from __future__ import annotations

import json

from outlast.node import jsonl

#: A line of progress with many metrics is shorter than this.
_LONGEST = 65536


def newest_step(progress_path: str) -> int | None:
    """From the file that `import outlast` replaces, beside the lines."""
    try:
        with open(progress_path[:-1], encoding="ascii") as file:
            step = json.loads(file.read(_LONGEST))["step"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return step if isinstance(step, int) else None


def has_left(progress_path: str) -> bool:
    """Whether the last line says that it has saved and left to be continued.

    A launcher such as torchrun has an exit code of its own, whatever its processes end with.
    """
    log = jsonl.read(progress_path, 0, _LONGEST)
    return log is not None and log.last_line().get("event") == "left"
