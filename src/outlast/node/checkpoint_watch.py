"""Progress of a training that knows nothing of Outlast: something new in its checkpoint directory."""

from __future__ import annotations

import os
import time

#: Enough for any real set of checkpoints; a bound for a directory that holds something else.
_MOST_ENTRIES = 20_000


class CheckpointWatch:
    """Compares what is in a directory with what was. Names with a leading dot are in the making."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._at_start = self._last = _entries(directory)
        #: Seconds until it is worth looking again: seldom where a look is expensive.
        self.pause = 1.0

    def changed(self) -> bool:
        """Something is new or was rewritten since the last look. What was only removed is no progress."""
        began = time.monotonic()
        now = _entries(self._directory)
        self.pause = max(1.0, 20 * (time.monotonic() - began))
        new = bool(now - self._last)
        self._last = now
        return new

    @property
    def progressed(self) -> bool:
        """The same between the start and the last look."""
        return bool(self._last - self._at_start)


def _entries(directory: str) -> frozenset[tuple[str, int, int]]:
    found: set[tuple[str, int, int]] = set()
    ahead = [directory]
    while ahead and len(found) < _MOST_ENTRIES:
        try:
            with os.scandir(ahead.pop()) as listing:
                for entry in listing:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    found.add((entry.path, status.st_size, status.st_mtime_ns))
        except OSError:
            continue  # removed while we looked, or unreadable: nothing new to be seen there
    return frozenset(found)
