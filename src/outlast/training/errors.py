"""What can go wrong with checkpoints.

Exception
├── CheckpointError       shown to the user: no checkpoint can be used, and why
├── Superseded            shown to the user: this process must not save any more
├── SaveFailed            shown to the user: what was to be saved is not on the disk
└── Damaged               inside this package: one checkpoint is not what was written
"""

from __future__ import annotations


class CheckpointError(Exception):
    """Checkpoints exist and none can be used, or the place they belong to cannot be read.

    The training must not start afresh by itself: hours of work may be lying there.
    """


class Superseded(Exception):
    """Another process has taken over this run; what this one saves would mix two histories."""


class SaveFailed(Exception):
    """A checkpoint could not be written; the ones before are as they were. The training may go on."""


class Damaged(Exception):
    """A checkpoint is torn, altered or not one at all; the message says which part does not fit."""
