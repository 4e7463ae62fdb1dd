"""The exceptions of checkpoints::

Exception
├── CheckpointError       shown to the user: no checkpoint can be used, and why
│   └── UnknownFormat     a checkpoint is intact, but another version of Outlast wrote it
├── Superseded            shown to the user: this process must not save any more
├── SaveFailed            shown to the user: a checkpoint could not be written
└── Damaged               internal: one checkpoint is not as it was written
"""

from __future__ import annotations


class CheckpointError(Exception):
    """Checkpoints exist but none can be used, or their directory cannot be read.

    Do not catch it to start from the beginning: hours of work may be recoverable.
    """


class UnknownFormat(CheckpointError):
    """A checkpoint is intact, but has a format that this version of Outlast cannot read."""


class Superseded(Exception):
    """Another attempt has taken over this run; this process must not save any more and should exit."""


class SaveFailed(Exception):
    """A checkpoint could not be written. Earlier checkpoints are unchanged, and the script may continue."""


class Damaged(Exception):
    """A checkpoint is incomplete, altered or not a checkpoint; the message names the part that is wrong."""
