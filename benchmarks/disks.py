"""A private file system for measurements, whose caches can be dropped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Disk:
    """A directory whose cached contents can be dropped."""

    def __init__(self, path: Path, image: Path | None) -> None:
        self.path = path
        self._image = image

    @property
    def is_private(self) -> bool:
        return self._image is not None

    @property
    def description(self) -> str:
        if self._image is None:
            return "a directory of the machine's file system; cold: contents are dropped, names stay cached"
        return "a private ext4 in a file; cold: unmounted, its contents dropped, mounted again"

    def mount(self) -> None:
        if self._image is not None:
            _call("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        if self._image is not None:
            _call("umount", str(self.path))

    def forget(self) -> None:
        """Drop all cached contents. No file may be open or mapped."""
        # File by file even if it is unmounted: a process in another mount namespace may keep it mounted.
        os.sync()
        for file in self.path.rglob("*"):
            if file.is_file():
                _drop(file)
        if self._image is None:
            return
        self.unmount()
        os.sync()
        _drop(self._image)
        self.mount()

    def forget_content(self, file: Path) -> None:
        """Drop the cached contents of a file, which may be open, except for pages mapped into memory."""
        os.sync()
        _drop(file)
        if self._image is not None:
            _drop(self._image)


@contextlib.contextmanager
def private_disk(size: int) -> Iterator[Disk]:
    """Yield a disk of `size` bytes, or a plain directory if mounting is not permitted."""
    # SIGTERM must also unmount it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        image, path = Path(folder) / "image", Path(folder) / "disk"
        path.mkdir()
        disk = Disk(path, image)
        try:
            with image.open("wb") as file:
                file.truncate(size)
            _call("mkfs.ext4", "-q", "-F", "-N", "200000", str(image))
            disk.mount()
        except (OSError, RuntimeError):
            image.unlink(missing_ok=True)
            disk = Disk(path, None)
        try:
            yield disk
        finally:
            disk.unmount()


def _drop(file: Path) -> None:
    """Drop the cached contents of a file. Only clean pages are dropped: sync first."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError("%s: %s" % (" ".join(command), done.stderr.strip()))
