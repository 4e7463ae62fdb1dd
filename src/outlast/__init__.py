"""Outlast brings a training to its end on clusters that kill it.

Inside a training script::

    import outlast

    state = outlast.load() or {"step": 0, ...}
    for step in range(state["step"], 1000):
        ...
        outlast.progress(step, 1000, loss=loss)
        if outlast.should_stop():
            outlast.save(state, step=step)
            outlast.leave()

The names below come from `outlast.training`; they are looked up on first use, so that commands which
never touch them do not pay for the import.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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
    # Inside a job the stop signal may come before the first call: be ready from the import on.
    from outlast import training as _training

    _training.listen()
