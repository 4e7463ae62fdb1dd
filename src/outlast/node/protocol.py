"""Values that the node program and the controller share: phases, outcomes, exit codes, environment variables.

They are plain strings, so that another version can read a work order or an event log of this one.
"""

from __future__ import annotations

from enum import Enum

#: Exit code of a training script that saved its state and exited before it was done.
EXIT_CONTINUE = 85
#: Exit code of the node program if another job (or the controller) holds its attempt.
EXIT_NOT_CLAIMED = 86
#: Exit code of the node program if it cannot read its work order.
EXIT_BAD_ORDER = 87
#: Exit code of a job's script if modules, environment or other lines before the training failed.
EXIT_NOT_PREPARED = 88
#: Such a script prints this, and the line that failed.
SETUP_FAILED = "outlast: this failed before the training:"


#: `why` in the event "stop": a signal from outside stopped the training, not its time limit.
STOP_SIGNALLED = "signal"
#: `why` in the event "stop": the wall-time limit.
STOP_AT_LIMIT = "limit"


class Phase(str, Enum):
    """The step that an attempt is in, in the order of the steps."""

    CLAIM = "claim"
    STAGE = "stage"
    UNPACK = "unpack"
    ENVIRONMENT = "environment"
    COMPUTE = "compute"
    VALIDATE = "validate"
    DELIVER = "deliver"
    CLEAN_UP = "clean-up"


class Outcome(str, Enum):
    """The result of an attempt."""

    FINISHED = "finished"
    CONTINUE = "continue"
    EVICTED = "evicted"
    OVER_TIME = "over-time"
    STALLED = "stalled"
    NOT_FOUND = "not-found"
    CORRUPT_INPUT = "corrupt-input"
    NETWORK = "network"
    OUT_OF_MEMORY = "out-of-memory"
    OUT_OF_DISK = "out-of-disk"
    NODE_TROUBLE = "node-trouble"
    CRASHED = "crashed"
    WRONG_OUTPUT = "wrong-output"
    LOST = "lost"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


def parse_outcome(value: object) -> Outcome | None:
    """Return the outcome that a log has under this value; None if it has none, or one of another version."""
    try:
        return Outcome(value)
    except ValueError:
        return None


class Variable:
    """Names of environment variables that the training process gets."""

    TOKEN = "OUTLAST_TOKEN"
    RUN = "OUTLAST_RUN"
    ATTEMPT = "OUTLAST_ATTEMPT"
    #: Seconds since the epoch (with decimals) by which the training must have ended.
    DEADLINE = "OUTLAST_DEADLINE"
    #: Seconds (with decimals) until then when the training was started, and the clock of its host at that
    #: moment: the boot id and the monotonic time. Hosts may disagree about the time since the epoch.
    TIME_LEFT = "OUTLAST_TIME_LEFT"
    CLOCK = "OUTLAST_CLOCK"
    #: Seconds before the deadline at which the stop signal comes.
    GRACE = "OUTLAST_GRACE"
    #: The bytes of memory that this attempt has requested.
    MEMORY = "OUTLAST_MEMORY"
    CHECKPOINT_DIR = "OUTLAST_CHECKPOINT_DIR"
    CHECKPOINT_KEEP = "OUTLAST_CHECKPOINT_KEEP"
    DATA_DIR = "OUTLAST_DATA_DIR"
    OUTPUT_DIR = "OUTLAST_OUTPUT_DIR"
    #: Seconds between two automatic saves, or "auto", and the bounds of "auto".
    SAVE_EVERY = "OUTLAST_SAVE_EVERY"
    SAVE_SHORTEST = "OUTLAST_SAVE_SHORTEST"
    SAVE_LONGEST = "OUTLAST_SAVE_LONGEST"
    #: From earlier attempts: seconds that a save blocked the training, and the most until one was durable.
    SAVE_BLOCKED = "OUTLAST_SAVE_BLOCKED"
    SAVE_DURABLE = "OUTLAST_SAVE_DURABLE"
    #: Seconds that the run has computed so far, and how often the cluster interrupted it.
    OBSERVED = "OUTLAST_OBSERVED"
    INTERRUPTIONS = "OUTLAST_INTERRUPTIONS"
    #: JSON lines in which the training process reports progress, saves and resumes.
    PROGRESS_FILE = "OUTLAST_PROGRESS_FILE"
