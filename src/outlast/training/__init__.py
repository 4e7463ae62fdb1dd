"""What a training script uses: checkpoints that survive, a deadline that is known, progress that is told.

Standard library only; NumPy and torch are used where the state holds their objects. Inside a job the
environment says where checkpoints go and when the job ends; outside one, checkpoints go to `./checkpoints`
and there is no end.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn, SupportsIndex

from outlast.training.errors import CheckpointError, Superseded
from outlast.training.session import Session, read_settings

__all__ = [
    "CheckpointError",
    "Superseded",
    "leave",
    "listen",
    "load",
    "progress",
    "save",
    "should_stop",
    "time_left",
]

_session = Session(read_settings(os.environ))


def load() -> Any:
    """The state of the newest whole checkpoint, or None if nothing was ever saved.

    A torn or altered checkpoint is put aside with a warning, and the one before is taken. If checkpoints
    exist and none can be used, CheckpointError is raised: starting afresh is for a person to decide.

    From this call on the run is this process's: one that loaded before can no longer save, unless it is
    of the same attempt. Outside a job each process is an attempt of its own. Tensors come back on the CPU,
    without `requires_grad`.
    """
    return _session.load()


def save(state: Any, step: SupportsIndex) -> bool:
    """Make the state durable; True once it would survive the loss of power.

    The state is a tree of dicts, lists, tuples, sets, numbers, strings, bytes, NumPy arrays and torch
    tensors; anything else is a TypeError that names the place. If the disk is full or fails, a warning is
    given, the checkpoints before stay, and False is returned: the training may go on. Superseded is raised
    if a process of another attempt has taken over the run.
    """
    return _session.save(state, step)


def time_left() -> float:
    """Seconds until the training must have ended; infinite outside a job."""
    return _session.clock.time_left()


def should_stop() -> bool:
    """Whether it is time to save and leave: a stop signal came, or the time left is needed for saving.

    Call it once in each step. It learns from the time between its calls and from how long saving takes.
    """
    return _session.clock.should_stop()


def progress(step: SupportsIndex, total: SupportsIndex | None = None, **metrics: Any) -> None:
    """Tell how far the training is, as often as you like: a few times a second it is written down.

    Only read, never waited for; metrics may be anything that is a number. Outside a job nothing happens.
    """
    _session.progress(step, total, metrics)


def leave() -> NoReturn:
    """Exit with "saved, continue me": the run goes on in another job from its newest checkpoint."""
    _session.leave()


def listen() -> None:
    """Take TERM, USR1 and USR2 as a wish to stop, which `should_stop()` then tells.

    Inside a job this happens at import. A signal that already has a handler keeps it; outside the main
    thread, where Python allows no handlers, nothing happens.
    """
    _session.clock.listen()
