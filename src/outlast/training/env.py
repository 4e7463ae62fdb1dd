"""Environment variables and values that the training process shares with the node program, which sets them.

They repeat `outlast.node.protocol`, because neither package may import the other; a unit test compares them.
"""

from __future__ import annotations

#: Exit code of a training script that saved its state and exited before it was done.
EXIT_CONTINUE = 85

TOKEN = "OUTLAST_TOKEN"
RUN = "OUTLAST_RUN"
ATTEMPT = "OUTLAST_ATTEMPT"
DEADLINE = "OUTLAST_DEADLINE"
TIME_LEFT = "OUTLAST_TIME_LEFT"
CLOCK = "OUTLAST_CLOCK"
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

#: Where checkpoints go, and how many are kept, outside a job.
DEFAULT_DIRECTORY = "checkpoints"
DEFAULT_KEEP = 3
#: The minimum to keep: if the newest turns out to be damaged, the one before must still exist.
LEAST_KEEP = 2
#: The value of SAVE_EVERY for an automatic interval, and the default limits of that interval in seconds.
AUTO = "auto"
DEFAULT_SHORTEST = 10.0
DEFAULT_LONGEST = 3600.0


def newest_progress_path(progress_file: str) -> str:
    """Return the path of the file with the newest progress, which lies beside the log of events.

    `outlast.node.progress_file` repeats the rule, because neither package may import the other; a unit test
    compares the two.
    """
    return progress_file[:-1] if progress_file.endswith(".jsonl") else progress_file + ".json"
