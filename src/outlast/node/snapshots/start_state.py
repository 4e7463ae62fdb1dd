"""The state that an attempt starts from: the checkpoints as they are, or a snapshot that is put back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable

from outlast.node.event_log import EventLog
from outlast.node.snapshots.script_files import CannotKeep
from outlast.node.snapshots.snapshot_store import SnapshotStore, Torn

#: Longer reasons are cut, in characters.
_LONGEST_WHY = 300


@dataclass(frozen=True)
class StartState:
    """The snapshot that equals the state at the start of an attempt; None if there is none."""

    snapshot: int | None = None
    #: False if the state was found after a kill, in a format that cannot be checked.
    sure: bool = True
    #: How many older snapshots are left.
    older: int = 0


class StartStateFinder:
    """Prepares the checkpoint directory before the training starts."""

    def __init__(
        self, store: SnapshotStore, checkpoints: str, events: EventLog, pulse: Callable[[], None]
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._events = events
        self._pulse = pulse

    def prepare(self, before: int | None) -> StartState:
        """Return the state to start from; with `before`, the newest snapshot with a lower number.

        Without a snapshot, the checkpoints are used as they are. Raises OSError if one cannot be put back
        now: a training must not start with a part of its files. Raises whatever the pulse raises.
        """
        if not os.path.isdir(self._checkpoints):
            self._store.retire()  # the user moved the checkpoints away, to start from the beginning
            return StartState()
        restored = self._finish_restore()
        if before is not None and (restored is None or restored >= before):
            return self._go_back(before)
        return self._check() if restored is None else self._describe(restored)

    def _finish_restore(self) -> int | None:
        """Complete a restore that was killed; return the number of the snapshot, None if there was none.

        If the snapshot is damaged, an older one takes its place. Newer ones had been given up.
        """
        try:
            number = self._store.finish_restore(self._pulse)
        except CannotKeep as error:
            self._log(_text(error))
            number = self._restore(None)
            if number is None:
                self._store.forget_restore()
        if number is not None:
            self._store.remove_from(number + 1)
            self._log(f"an interrupted return was completed: snapshot {number} was put back")
        return number

    def _go_back(self, before: int) -> StartState:
        number = self._restore(before)
        if number is None:
            self._log(f"no snapshot before {before} is left; the checkpoints are used as they are")
            return self._check()
        self._store.remove_from(before)
        self._log(f"attempts that began from snapshot {before} failed: snapshot {number} was put back")
        return self._describe(number)

    def _check(self) -> StartState:
        """Keep the current state; if it is torn or gone, put the newest snapshot back."""
        try:
            is_lost = self._store.is_lost(self._pulse)
            taken = None if is_lost else self._store.take(sure=False, pulse=self._pulse)
        except Torn as error:
            number = self._restore(None)
            if number is None:
                self._log(f"{_text(error)}; no snapshot is left to put back")
                return StartState()
            self._log(f"{_text(error)}; snapshot {number} was put back")
            return self._describe(number)
        except (CannotKeep, OSError) as error:
            self._events.warn(f"the checkpoints are used as they are: {_text(error)}")
            return StartState()
        if is_lost:
            number = self._restore(None)
            if number is not None:
                self._log(f"no checkpoint was there: snapshot {number} was put back")
            return self._describe(number)
        return self._describe(taken.snapshot.number if taken is not None else None)

    def _restore(self, before: int | None) -> int | None:
        """Put back the newest undamaged snapshot (with a number lower than `before`); return its number."""
        for found in reversed(self._store.snapshots()):
            if before is not None and found.number >= before:
                continue
            try:
                self._store.restore(found, self._pulse)
            except CannotKeep as error:
                self._log(_text(error))
                continue
            return found.number
        return None

    def _describe(self, number: int | None) -> StartState:
        if number is None:
            return StartState()
        found = self._store.snapshots()
        sure = any(one.sure for one in found if one.number == number)
        state = StartState(number, sure, sum(one.number < number for one in found))
        self._events.write("began", snapshot=number, sure=sure, older=state.older)
        return state

    def _log(self, text: str) -> None:
        """Write a line that `outlast explain` shows."""
        self._events.write("snapshot", text=text)


def _text(error: Exception) -> str:
    return str(error)[:_LONGEST_WHY]
