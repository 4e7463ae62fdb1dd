"""Helpers that write checkpoints in tests."""

from __future__ import annotations

from typing import Any

from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.state_tree import FlatState
from outlast.training.errors import SaveFailed
from outlast.training.training_session import TrainingSession

HEAD = {"step": 1, "generation": 1, "sequence": 1, "rank": 0, "world": 1}


class Waiting(TrainingSession):
    """A session whose saves wait until they are durable; `save` returns False if one failed."""

    def save(self, state: Any, step: Any, wait: bool = True) -> bool:  # type: ignore[override]
        try:
            super().save(state, step, wait)
        except SaveFailed:
            return False
        return True


def content_of(flat: FlatState) -> memoryview:
    """Return a checkpoint file without its trailer, built in memory that held other bytes before."""
    layout = file_format.lay_out(flat)
    content = memoryview(bytearray(b"\xff" * layout.size))
    layout.fill(content)
    return content


def write(path: str, flat: FlatState) -> None:
    """Write a checkpoint file with the head HEAD."""
    file_format.write(path, HEAD, content_of(flat))
