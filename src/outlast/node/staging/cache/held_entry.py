"""A cache entry that is in use, and the proof that its path still leads to the content that was compared."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Iterator

from outlast.node.staging.cache.entry import CONTENT
from outlast.node.staging.cache.in_use import UseMarker
from outlast.node.staging.cache.user_directory import UnsafeCache, UserDirectory


@dataclass(frozen=True)
class HeldEntry:
    """An entry in use. `content` is not removed before `release`."""

    content: str
    marker: UseMarker
    #: The device and the number of the content's inode.
    identity: tuple[int, int]
    directory: UserDirectory

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Yield a descriptor of the directory that has the content that was found intact.

        Raises UnsafeCache if it is gone.
        """
        name = os.path.basename(os.path.dirname(self.content))
        with self.directory.open("objects", name) as entry:
            if identity_of(os.stat(CONTENT, dir_fd=entry, follow_symlinks=False)) != self.identity:
                raise UnsafeCache("it was replaced while it was taken into use", self.content)
            yield entry

    def verify(self) -> None:
        """Raise UnsafeCache if `content` does not lead to the content that was found intact.

        To be called after a link to `content` was made: from then on the link is used.
        """
        self.directory.verify()
        if identity_of(os.stat(self.content, follow_symlinks=False)) != self.identity:
            raise UnsafeCache("it was replaced while it was taken into use", self.content)

    def release(self) -> None:
        self.marker.remove()


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return what distinguishes a file or directory from all others while it exists."""
    return status.st_dev, status.st_ino
