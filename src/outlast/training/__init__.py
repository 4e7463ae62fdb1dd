"""What a training script uses: checkpoints that survive, a deadline that is known, progress that is told.

Standard library only; NumPy and torch are used where the state holds their objects. Inside a job the
environment says where checkpoints go and when the job ends; outside one, checkpoints go to `./checkpoints`
and there is no end.
"""

from __future__ import annotations

import os
from typing import Any, Callable, NoReturn, SupportsIndex

from outlast.training.checkpoints.kept_files import File
from outlast.training.errors import CheckpointError, SaveFailed, Superseded
from outlast.training.step_hook import StepHook
from outlast.training.training_loop import TrainingLoop
from outlast.training.training_session import TrainingSession, read_settings

__all__ = [
    "CheckpointError",
    "File",
    "SaveFailed",
    "Superseded",
    "Training",
    "keep",
    "leave",
    "listen",
    "load",
    "progress",
    "save",
    "should_save",
    "should_stop",
    "time_left",
    "wait",
]

_session = TrainingSession(read_settings(os.environ))


def load() -> Any:
    """The state of the newest whole checkpoint, or None if nothing was ever saved.

    A torn or altered checkpoint is put aside with a warning, and the one before is taken. If checkpoints
    exist and none can be used, CheckpointError is raised: starting afresh is for a person to decide.

    From this call on the run is this process's: one that loaded before can no longer save, unless it is
    of the same attempt. Outside a job each process is an attempt of its own. Tensors come back on the device
    they had (the CPU where there is no such device), without `requires_grad`; those that shared memory share
    it again. Arrays lie in the checkpoint's file until they are written to, and never change it.
    """
    return _session.load()


class Training(TrainingLoop):
    """A whole training that goes on bit for bit where it was, also in the middle of an epoch::

        training = outlast.Training(model=model, optimizer=optimizer, data=loader)
        for epoch in training.epochs(90):
            for images, labels in training.batches():
                ...
                training.step(loss=loss)

    Make it when all parts are there: it loads the newest checkpoint into them. A part is anything with
    `state_dict()` and `load_state_dict()`: model, optimizer, scheduler, scaler. `data` is an
    `outlast.data.Loader` or torchdata's StatefulDataLoader. The random states of Python, NumPy and torch are
    saved with them. `step` saves when it is time to, and leaves when the job must end.
    """

    def __init__(self, data: Any = None, **parts: Any) -> None:
        super().__init__(_session, data, **parts)


def keep(path: str | os.PathLike[str], flush: Callable[[], Any] | None = None) -> None:
    """Keep the files below a path with every checkpoint: `load()` puts them back as they were at that save.

    For logs that grow with the training, such as TensorBoard's: what was written after the last save is
    written again by the next attempt, and would be there twice. The path is relative to
    `$OUTLAST_OUTPUT_DIR` in a job, else to the current directory; `flush` is called before each save.
    """
    _session.kept.add(path, flush)


def save(state: Any, step: SupportsIndex, wait: bool = False) -> None:
    """Copy the state and return; it is written behind the training, and told as saved once it is durable.

    The state is a tree of dicts, lists, tuples, sets, numbers, strings, bytes, NumPy arrays, torch tensors
    and `outlast.File`; anything else is a TypeError that names the place. Saves are written in order, one at
    a time: the next one waits if the last is not down yet. The end of the script and `leave()` wait too, and
    `wait=True` waits here.

    A save that failed raises SaveFailed at the next call of `save`, `wait` or `leave`; the checkpoints before
    stay, so a training that catches it may go on. Superseded is raised if a process of another attempt has
    taken over the run.
    """
    _session.save(state, step, wait)


def wait() -> None:
    """Until all that was saved would survive the loss of power. Raises what `save` would at its next call."""
    _session.wait()


def time_left() -> float:
    """Seconds until the training must have ended; infinite outside a job."""
    return _session.clock.time_left()


def should_save() -> bool:
    """Whether a save is due: from what saves cost, how often the cluster interrupts, and the time left.

    Call it once in each step, before `save`. It is true often enough that an interruption costs little, and
    in time before the deadline; `checkpoints.every` in params.yaml, and its bounds, rule it.
    """
    return _session.should_save()


def should_stop() -> bool:
    """Whether it is time to save and leave: a stop signal came, or the time left is needed for saving.

    Call it once in each step. It learns from the time between its calls and from how long saving takes.
    """
    return _session.should_stop()


def progress(step: SupportsIndex, total: SupportsIndex | None = None, **metrics: Any) -> None:
    """Tell how far the training is, as often as you like: a few times a second it is written down.

    Only read, never waited for; metrics may be anything that is a number. Outside a job nothing happens.
    """
    _session.progress(step, total, metrics)


def leave() -> NoReturn:
    """Wait for the last save and exit with "saved, continue me": the run goes on there in another job."""
    _session.leave()


def between_steps(framework: str, take: Callable[[], dict[str, Any]]) -> StepHook:
    """For adapters: tells, saves and leaves between two steps; `take` gives the whole state."""
    return StepHook(_session, "outlast." + framework.lower(), "outlast's callback for " + framework, take)


def listen() -> None:
    """Take TERM, USR1 and USR2 as a wish to stop, which `should_stop()` then tells.

    Inside a job this happens at import. A signal that already has a handler keeps it; outside the main
    thread, where Python allows no handlers, nothing happens.
    """
    _session.clock.listen()
