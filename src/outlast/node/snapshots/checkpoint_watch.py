"""Detection of new checkpoints, also of a training script that does not import outlast."""

from __future__ import annotations

import math
import os
import time
from typing import Callable

from outlast.node.snapshots.script_files import ScriptFiles, WorkingFiles, is_log
from outlast.node.snapshots.snapshot_manifest import Stamp

#: More than any real set of checkpoints has; a limit for directories with other content.
_MAX_ENTRIES = 20_000
#: A directory without a change for this many seconds is quiet: no checkpoint is being written. A log that
#: grows is no change.
_QUIET = 1.0


class CheckpointWatch:
    """Compares a directory with its earlier content. Names with a leading dot are temporary and ignored.

    Models and checkpoints in the working directory are watched too, if that is given, but apart from these.
    """

    def __init__(
        self,
        directory: str,
        clock: Callable[[], float] = time.monotonic,
        working: WorkingFiles | None = None,
    ) -> None:
        self._directory = directory
        self._script = ScriptFiles(directory, working)
        self._clock = clock
        self._at_start = self._last = _entries(directory)
        self._made_at_start = self._made = self._survey_working()
        #: True if the last check saw a new or rewritten model or checkpoint in the working directory.
        self.made_changed = False
        #: Seconds to wait before the next check: longer if a check is expensive.
        self.pause = 1.0
        self._checked = self._last_change = -math.inf

    def changed(self) -> bool:
        """Return True if a file is new or was rewritten since the last call; a removal is not a change."""
        began = self._clock()
        now, made = _entries(self._directory), self._survey_working()
        self._checked = self._clock()
        self.pause = max(1.0, 20 * (self._checked - began))
        new = bool(now - self._last)
        self.made_changed = bool(made - self._made)
        if self.made_changed or any(not is_log(path) for path, _, _ in now - self._last):
            self._last_change = self._checked
        self._last, self._made = now, made
        return new

    @property
    def quiet_at(self) -> float:
        """The time from which a check can show that nothing is being written; past if the last one did."""
        quiet = self._last_change + _QUIET
        return -math.inf if self._checked >= quiet else quiet

    @property
    def progressed(self) -> bool:
        """True if the last check saw a file that was not there at the start, or was rewritten since."""
        return bool(self._last - self._at_start)

    @property
    def made_progressed(self) -> bool:
        """The same of models and checkpoints in the working directory."""
        return bool(self._made - self._made_at_start)

    def _survey_working(self) -> frozenset[tuple[str, Stamp]]:
        try:
            return frozenset(self._script.survey_working().items())
        except OSError:
            return frozenset()  # not readable now


def _entries(directory: str) -> frozenset[tuple[str, int, int]]:
    """Return path, size and modification time of all files in the tree."""
    found: set[tuple[str, int, int]] = set()
    pending = [directory]
    while pending and len(found) < _MAX_ENTRIES:
        try:
            with os.scandir(pending.pop()) as listing:
                for entry in listing:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    found.add((entry.path, status.st_size, status.st_mtime_ns))
        except OSError:
            continue  # just removed, or not readable
    return frozenset(found)
