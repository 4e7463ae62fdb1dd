"""Names the training shares with the node program, which sets them, and with nothing else in the package.

They repeat `outlast.node.protocol`; a unit test holds the two together.
"""

from __future__ import annotations

#: What a training exits with when it has saved and wants to be continued.
EXIT_CONTINUE = 85

TOKEN = "OUTLAST_TOKEN"
RUN = "OUTLAST_RUN"
ATTEMPT = "OUTLAST_ATTEMPT"
DEADLINE = "OUTLAST_DEADLINE"
GRACE = "OUTLAST_GRACE"
CHECKPOINT_DIR = "OUTLAST_CHECKPOINT_DIR"
CHECKPOINT_KEEP = "OUTLAST_CHECKPOINT_KEEP"
PROGRESS_FILE = "OUTLAST_PROGRESS_FILE"
OUTPUT_DIR = "OUTLAST_OUTPUT_DIR"
SAVE_EVERY = "OUTLAST_SAVE_EVERY"
SAVE_SHORTEST = "OUTLAST_SAVE_SHORTEST"
SAVE_LONGEST = "OUTLAST_SAVE_LONGEST"
SAVE_BLOCKED = "OUTLAST_SAVE_BLOCKED"
SAVE_DURABLE = "OUTLAST_SAVE_DURABLE"
OBSERVED = "OUTLAST_OBSERVED"
INTERRUPTIONS = "OUTLAST_INTERRUPTIONS"

#: Where checkpoints go, and how many stay, when no job says otherwise.
DEFAULT_DIRECTORY = "checkpoints"
DEFAULT_KEEP = 3
#: Retention never goes below this: the newest may turn out bad, the one before must then be there.
LEAST_KEEP = 2
#: What SAVE_EVERY says where the time between saves is worked out, and its bounds in seconds.
AUTO = "auto"
DEFAULT_SHORTEST = 10.0
DEFAULT_LONGEST = 3600.0


def newest_progress(progress_file: str) -> str:
    """Return the file with the newest progress, beside the file of lines; `exchange.attempt_log` agrees."""
    return progress_file[:-1] if progress_file.endswith(".jsonl") else progress_file + ".json"
