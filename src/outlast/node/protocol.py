"""The words that node and controller share: phases, outcomes, exit codes, names in the environment.

They are plain strings so that a work order or an event log of one version can be read by another.
"""

from __future__ import annotations

from enum import Enum

#: What a training exits with when it has saved and wants to be continued.
EXIT_CONTINUE = 85
#: What the node program exits with when another job (or the controller) holds its attempt.
EXIT_NOT_CLAIMED = 86
#: What the node program exits with when its work order cannot be read.
EXIT_BAD_ORDER = 87
#: What a job's script exits with when modules, environment or other lines before the training failed.
EXIT_NOT_PREPARED = 88


#: `why` in the event "stop": a signal from outside stopped the training, not its time limit.
STOP_SIGNALLED = "signal"


class Phase(str, Enum):
    """What an attempt is doing. The order here is the order in which they come."""

    CLAIM = "claim"
    STAGE = "stage"
    UNPACK = "unpack"
    ENVIRONMENT = "environment"
    COMPUTE = "compute"
    VALIDATE = "validate"
    DELIVER = "deliver"
    CLEAN_UP = "clean-up"


class Outcome(str, Enum):
    """How an attempt ended."""

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


class Variable:
    """Names of environment variables that the training finds."""

    TOKEN = "OUTLAST_TOKEN"
    RUN = "OUTLAST_RUN"
    ATTEMPT = "OUTLAST_ATTEMPT"
    #: Seconds since the epoch (with decimals) by which the training must have ended.
    DEADLINE = "OUTLAST_DEADLINE"
    #: Seconds before the deadline at which the stop signal comes.
    GRACE = "OUTLAST_GRACE"
    CHECKPOINT_DIR = "OUTLAST_CHECKPOINT_DIR"
    CHECKPOINT_KEEP = "OUTLAST_CHECKPOINT_KEEP"
    DATA_DIR = "OUTLAST_DATA_DIR"
    OUTPUT_DIR = "OUTLAST_OUTPUT_DIR"
    #: Seconds between two saves that the training makes by itself, or "auto", and the bounds of "auto".
    SAVE_EVERY = "OUTLAST_SAVE_EVERY"
    SAVE_SHORTEST = "OUTLAST_SAVE_SHORTEST"
    SAVE_LONGEST = "OUTLAST_SAVE_LONGEST"
    #: Of earlier attempts: seconds that a save held the training up, and that the slowest took to be durable.
    SAVE_BLOCKED = "OUTLAST_SAVE_BLOCKED"
    SAVE_DURABLE = "OUTLAST_SAVE_DURABLE"
    #: Seconds that the run was at work so far, and how often the cluster cut it short.
    OBSERVED = "OUTLAST_OBSERVED"
    INTERRUPTIONS = "OUTLAST_INTERRUPTIONS"
    #: JSON lines in which the training tells of progress, saves and resumes.
    PROGRESS_FILE = "OUTLAST_PROGRESS_FILE"
