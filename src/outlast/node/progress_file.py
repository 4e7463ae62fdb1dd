"""The files in which a training process reports: a log of JSON lines, and beside it the newest progress.

`import outlast` appends to the log and replaces the other file. `outlast.training.env` has the same rule for
its path, because neither package may import the other; a unit test compares the two.
"""

from __future__ import annotations

from outlast.node import jsonl
from outlast.untrusted_files import parse_json, read_file

#: A line of progress with many metrics is shorter than this.
_MAX_LINE_BYTES = 65536
#: What `import outlast` logs about its checkpoints.
_CHECKPOINT_EVENTS = ("saved", "loaded", "save-failed")


def newest_progress_path(path: str) -> str:
    """Return the path of the file with the newest progress; `path` is the log."""
    return path[:-1] if path.endswith(".jsonl") else path + ".json"


def newest_step(path: str) -> int | None:
    """Return the step of the newest progress, or None if there is none that can be read."""
    try:
        step = parse_json(read_file(newest_progress_path(path), _MAX_LINE_BYTES))["step"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return step if isinstance(step, int) else None


def has_left(path: str) -> bool:
    """Return True if the log ends with the event "left": the training saved and exited before it was done.

    A launcher such as torchrun has an exit code of its own, whatever its processes exit with.
    """
    log = jsonl.read(path, 0, _MAX_LINE_BYTES)
    return log is not None and log.last_line().get("event") == "left"


def has_checkpoints(path: str) -> bool:
    """Return True if the training uses Outlast's checkpoints: a save of these cannot be torn."""
    log = jsonl.read(path, _MAX_LINE_BYTES, _MAX_LINE_BYTES)
    return log is not None and any(line.get("event") in _CHECKPOINT_EVENTS for line in log.lines())
