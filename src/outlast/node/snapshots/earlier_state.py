"""What earlier attempts left for a training to resume from, and whether it did."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Callable, Iterable, Tuple

from outlast.node.attempt_result import AttemptResult
from outlast.node.checkpoint_formats import find_state
from outlast.node.protocol import Outcome
from outlast.node.pulse import no_pulse
from outlast.node.snapshots.read_files import ReadFiles
from outlast.node.snapshots.script_files import CannotKeep, ScriptFiles

#: Size and modification time of a file that was made in the working directory.
MadeStamp = Tuple[int, int]
#: How much of the name of a file a sentence has.
_LONGEST_NAME = 100


class EarlierState:
    """The checkpoints and the models in the working directory that were there before the training started."""

    def __init__(self, checkpoints: str, working: str) -> None:
        self._script = ScriptFiles(checkpoints)
        self._working = working
        #: All that earlier attempts had made in the working directory.
        self.made: frozenset[tuple[str, MadeStamp]] = frozenset()
        self._made_state: list[str] = []
        self._checkpoints: frozenset[str] = frozenset()
        self._reads = ReadFiles([])
        self._read_nothing = False

    @property
    def has_made_state(self) -> bool:
        """True if there is a model or checkpoint in the working directory."""
        return bool(self._made_state)

    def record(self, made: frozenset[tuple[str, MadeStamp]]) -> None:
        """Note what is in the working directory besides the code."""
        self.made = made
        self._made_state = find_made_state(self._working, made)

    def watch(self, pulse: Callable[[], None]) -> None:
        """Watch which files are read, until `end_watch`: a training that resumes reads one."""
        self._checkpoints = self._list_checkpoints(pulse)
        paths = [os.path.join(self._script.checkpoints, name) for name in self._checkpoints]
        self._reads = ReadFiles(paths + [os.path.join(self._working, path) for path in self._made_state])

    def end_watch(self) -> None:
        self._read_nothing = self._reads.none_was_read()
        self._reads.close()

    def compare(self, end: AttemptResult, made: list[str]) -> AttemptResult:
        """Return the end of the attempt, with `started_over` if it did; `made` is its new or changed state.

        An attempt that read nothing of what was saved, and only wrote the same files anew, started over: the
        next one would do so, too.
        """
        is_stopped = end.outcome in (Outcome.OVER_TIME, Outcome.EVICTED)
        if not (is_stopped and self._read_nothing and (made or end.progressed)):
            return end
        made_before = {path for path, _ in self.made}
        if not made_before.issuperset(made) or not self._checkpoints.issuperset(self._list_checkpoints()):
            return end
        saved = (self._made_state + sorted(self._checkpoints))[0][:_LONGEST_NAME]
        detail = "%s It started from the beginning: it did not read %s, which an earlier attempt had saved."
        return replace(end, detail=detail % (end.detail, saved), progressed=False, started_over=True)

    def _list_checkpoints(self, pulse: Callable[[], None] = no_pulse) -> frozenset[str]:
        try:
            return frozenset(self._script.survey(pulse).settled)
        except (CannotKeep, OSError):
            return frozenset()


def find_made_state(working: str, files: Iterable[tuple[str, MadeStamp]]) -> list[str]:
    """Return the models and checkpoints among files that were made in a working directory."""
    return find_state(working, [(path, size) for path, (size, _) in files])
