"""Outlast keeps training runs going until they finish, on clusters that kill jobs.

A training script loads the newest checkpoint, saves when a save is due, and leaves in time::

    import outlast

    state = outlast.load() or {"step": 0, "weights": fresh_weights()}
    while state["step"] < STEPS:
        train_one_step(state)
        state["step"] += 1
        outlast.progress(state["step"], STEPS)
        stop = outlast.should_stop()
        if stop or outlast.should_save():
            outlast.save(state, step=state["step"])
        if stop:
            outlast.leave()

`outlast.Training` does all of this for a PyTorch loop; `outlast.frameworks` has callbacks for Lightning,
Keras and Transformers. `outlast.data` reads archives without unpacking them.

The public names come from `outlast.training` and are imported on first use, so commands that do not need them
start faster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from outlast.training import (
        CheckpointError,
        File,
        SaveFailed,
        Superseded,
        Training,
        keep,
        leave,
        load,
        progress,
        save,
        should_save,
        should_stop,
        time_left,
        wait,
    )

__all__ = [
    "CheckpointError",
    "File",
    "SaveFailed",
    "Superseded",
    "Training",
    "keep",
    "leave",
    "load",
    "progress",
    "save",
    "should_save",
    "should_stop",
    "time_left",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from outlast import training

        return getattr(training, name)
    raise AttributeError("module 'outlast' has no attribute %r" % name)


if "OUTLAST_TOKEN" in os.environ:
    # In a job the stop signal may arrive before the first call, so the handlers are installed at import.
    from outlast import training as _training

    _training.listen()
