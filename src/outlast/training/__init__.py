"""The functions that a training script calls: checkpoints, the deadline and progress.

Standard library only; NumPy and torch are used if the state holds their objects. In a job, environment
variables set by the node program name the checkpoint directory and the deadline. Outside a job, checkpoints
go to `./checkpoints` and there is no deadline.
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
    """Return the state of the newest valid checkpoint, or None if nothing was ever saved.

        state = outlast.load() or {"step": 0, "weights": fresh_weights()}

    Every byte is verified. A checkpoint that is incomplete or damaged is renamed to `.bad-…` with a warning,
    and the one before it is loaded. Raises CheckpointError if checkpoints exist but none can be used: whether
    to start over is for a person to decide, so do not catch it to start from the beginning.

    Loading claims the run for this attempt: processes of earlier attempts get Superseded when they save.
    Outside a job each process is an attempt of its own.

    Tensors are returned on the device they had (on the CPU if that device does not exist here) and without
    `requires_grad`; arrays and tensors that shared memory share it again. Arrays are mapped from the
    checkpoint file; changing them does not change the file.
    """
    return _session.load()


class Training(TrainingLoop):
    """A training loop that resumes bit for bit where it stopped, even in the middle of an epoch.

        training = outlast.Training(model=model, optimizer=optimizer, data=loader)
        for epoch in training.epochs(90):
            for images, labels in training.batches():
                ...
                training.step(loss=loss)

    Create it when all parts exist: it loads the newest checkpoint into them. A part is any object with
    `state_dict()` and `load_state_dict()`: model, optimizer, scheduler, scaler. `data` is an
    `outlast.data.Loader` or torchdata's StatefulDataLoader. The random states of Python, NumPy and torch are
    saved too. `step` reports progress; when everything that belongs to the step is done (after the last batch
    of an epoch also the code behind the inner loop), the state is saved if a save is due, and saved before
    the script exits if the job must end.

    Attributes: `steps` (completed in all attempts), `epoch` (the current one, counted from 0), `resumed` (the
    step it resumed from, or None), `state` (a dict for values of your own, saved with the rest).

    Raises TypeError for a part without `state_dict()`, and CheckpointError if the newest checkpoint has other
    parts or was not saved by `outlast.Training`.
    """

    def __init__(self, data: Any = None, **parts: Any) -> None:
        super().__init__(_session, data, **parts)


def keep(path: str | os.PathLike[str], flush: Callable[[], Any] | None = None) -> None:
    """Save the files under `path` with every checkpoint; `load()` restores them as they were at that save.

        outlast.keep("logs", flush=writer.flush)

    Use it for logs that grow during training, such as TensorBoard's: steps after the last save are repeated
    by the next attempt and would otherwise be logged twice. `path` is a file or a directory, relative to
    `$OUTLAST_OUTPUT_DIR` in a job and to the current directory outside one. `flush` is called before each
    save.
    """
    _session.kept.add(path, flush)


def save(state: Any, step: SupportsIndex, wait: bool = False) -> None:
    """Save a checkpoint of `state` in the background.

        outlast.save({"step": step, "model": model.state_dict()}, step=step)

    The state is copied before this returns, so it may change afterwards. It is then written by a thread, and
    reported as saved once it is durable (synced to disk). `step` is an integer from 0. With `wait=True` the
    call returns when the checkpoint is durable. Saves are written in order, one at a time: a save waits for
    the previous one. `leave()` and the end of the script also wait.

    A state is a tree of dicts, lists, tuples, sets, numbers, strings, bytes, NumPy arrays, torch tensors and
    `outlast.File`. Anything else raises TypeError, which names its place in the state.

    A failed save (for example on a full disk) raises SaveFailed at the next call of `save`, `wait` or
    `leave`; earlier checkpoints stay valid, so the script may catch it and continue. Raises Superseded if
    another attempt has taken over the run.
    """
    _session.save(state, step, wait)


def wait() -> None:
    """Wait until every checkpoint passed to `save` is durable.

    Raises SaveFailed if one could not be written, and Superseded if another attempt has taken over the run.
    """
    _session.wait()


def time_left() -> float:
    """Return the seconds until the job must have ended; infinity outside a job."""
    return _session.deadline.time_left()


def should_save() -> bool:
    """Return True if a save is due.

        if outlast.should_save():
            outlast.save(state, step=step)

    Call it once per step; it stays true until something is saved. The interval is chosen from the cost of a
    save, the number of interruptions so far and the time left, within the limits set by `checkpoints` in
    params.yaml.
    """
    return _session.should_save()


def should_stop() -> bool:
    """Return True if it is time to save and leave.

        if outlast.should_stop():
            outlast.save(state, step=step)
            outlast.leave()

    True once a stop signal arrived or the time left is needed for saving; it then stays true. Call it once
    per step: it measures the time between calls and the time that saves take. Raises Superseded if another
    attempt has taken over the run.
    """
    return _session.should_stop()


def progress(step: SupportsIndex, total: SupportsIndex | None = None, **metrics: Any) -> None:
    """Report how far the training is; `outlast status` and `outlast up` show it.

        outlast.progress(step, 1000, loss=loss)

    May be called at every step: it writes at most four times a second, and always the last values. `total` is
    the number of steps in all, if known. Metrics may be numbers or anything that converts to one, such as a
    tensor with one element. Does nothing outside a job.
    """
    _session.progress(step, total, metrics)


def leave() -> NoReturn:
    """Wait for the last save and exit with code 85, "saved, continue me"; the run resumes in another job.

    Exits by raising SystemExit. Raises SaveFailed instead if the last save failed.
    """
    _session.leave()


def make_step_hook(framework: str, capture: Callable[[], dict[str, Any]]) -> StepHook:
    """Return the hook that a framework's callback calls after each step.

    `capture` returns the complete state of the training between two steps.
    """
    return StepHook(_session, "outlast." + framework.lower(), "outlast's callback for " + framework, capture)


def listen() -> None:
    """Install handlers for SIGTERM, SIGUSR1 and SIGUSR2 that make `should_stop()` return True.

    In a job this happens at import. A signal that already has a handler keeps it. Does nothing outside the
    main thread, where Python does not allow handlers.
    """
    _session.deadline.install_handlers()
