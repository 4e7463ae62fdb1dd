"""Checkpoints written by tests."""

from __future__ import annotations

from typing import Any

from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.state_tree import Image
from outlast.training.errors import SaveFailed
from outlast.training.training_session import TrainingSession

HEAD = {"step": 1, "generation": 1, "sequence": 1, "rank": 0, "world": 1}


class Waiting(TrainingSession):
    """One whose saves are waited for."""

    def save(self, state: Any, step: Any, wait: bool = True) -> bool:  # type: ignore[override]
        try:
            super().save(state, step, wait)
        except SaveFailed:
            return False
        return True


def content_of(taken: Image) -> memoryview:
    """The file of a checkpoint but for its trailer; the memory it is made in is not empty."""
    layout = file_format.lay_out(taken)
    content = memoryview(bytearray(b"\xff" * layout.size))
    layout.fill(content)
    return content


def write(path: str, taken: Image) -> None:
    file_format.write(path, HEAD, content_of(taken))
