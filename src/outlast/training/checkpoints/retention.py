"""Retention: which checkpoints are removed when newer ones are valid."""

from __future__ import annotations

import os
from typing import Any

from outlast.training.checkpoints import checkpoint, checkpoint_names
from outlast.training.env import LEAST_KEEP
from outlast.training.errors import CheckpointError, Damaged, UnknownFormat
from outlast.untrusted_files import remove


class Retention:
    """Keeps the newest `keep` checkpoints, and at least two valid ones if there were two."""

    def __init__(self, directory: str, keep: int) -> None:
        self._directory = directory
        self._keep = max(keep, LEAST_KEEP)
        #: Checkpoints that this process has verified, with the inode, size and time of their files then.
        self._whole: dict[str, Any] = {}

    def remember_whole(self, name: str) -> None:
        """Record that a checkpoint was verified."""
        try:
            self._whole[name] = self._stamp(name)
        except (OSError, Damaged, CheckpointError):
            # It is verified again before it counts as valid.
            self._whole.pop(name, None)

    def retire_old(self) -> None:
        """Remove old checkpoints. Raises OSError; the next call finds what is left."""
        names = sorted(os.listdir(self._directory), key=checkpoint_names.parse_age, reverse=True)
        for name in self._too_old([name for name in names if checkpoint_names.is_checkpoint(name)]):
            self._retire(name)
        for name in [name for name in names if checkpoint_names.is_bad(name)][self._keep :]:
            self._retire(name)

    def _too_old(self, names: list[str]) -> list[str]:
        """Return all but the newest `keep`; of the rest, valid ones stay until two in all are kept."""
        if len(names) <= self._keep:
            return []
        whole = 0
        retired: list[str] = []
        for position, name in enumerate(names):
            counts = whole < LEAST_KEEP and self._is_whole(name)
            whole += counts
            if position >= self._keep and not counts and not self._is_of_another_version(name):
                retired.append(name)
        return retired

    def _retire(self, name: str) -> None:
        # Removing takes many calls; a half-removed checkpoint must not have a checkpoint's name.
        hidden = os.path.join(self._directory, checkpoint_names.temporary_name(name))
        self._whole.pop(name, None)
        try:
            os.rename(os.path.join(self._directory, name), hidden)
        except FileNotFoundError:
            # Another process of the attempt was faster.
            return
        remove(hidden)

    def _stamp(self, name: str) -> Any:
        parts = checkpoint.part_paths(os.path.join(self._directory, name))
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in map(os.stat, parts)]

    def _is_whole(self, name: str) -> bool:
        try:
            if self._whole.get(name) != self._stamp(name):
                checkpoint.verify(os.path.join(self._directory, name))
                self.remember_whole(name)
            return True
        except (OSError, Damaged, CheckpointError):
            return False

    def _is_of_another_version(self, name: str) -> bool:
        try:
            checkpoint.read_manifest(os.path.join(self._directory, name))
        except UnknownFormat:
            return True
        except (OSError, Damaged):
            return False
        return False
