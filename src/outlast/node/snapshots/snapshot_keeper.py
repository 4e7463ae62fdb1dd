"""Takes snapshots while the training runs: in a thread, whenever the checkpoint directory is quiet."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
from collections import Counter
from typing import Callable

from outlast.node.event_log import EventLog
from outlast.node.snapshots.script_files import CannotKeep
from outlast.node.snapshots.snapshot_store import SnapshotStore, Taken, Torn, Unsettled

#: The next snapshot waits for this many times the seconds that the last one took.
_PAUSE = 3.0
#: If the directory has not been quiet for this many seconds since a change, a snapshot is tried all the same.
_LONGEST_UNREST = 60.0
#: The same until there is a first one in this attempt.
_FIRST_UNREST = 5.0
#: After these errors no more snapshots are taken: the space that is left belongs to the training.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
#: Added to the niceness of the thread: the training comes first.
_NICENESS = 10
#: Seconds to wait for the thread at the end of a training.
_JOIN_TIMEOUT = 5.0
#: A file is linked, not copied, once the script has replaced it this often and never written it in place.
_MIN_REPLACED = 2


class _Cancelled(Exception):
    """The training has ended, and the snapshot under way is given up."""


class SnapshotKeeper:
    """Decides when to take a snapshot. Call its public methods in the thread of the supervision only."""

    def __init__(
        self, store: SnapshotStore, events: EventLog, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._events = events
        self._now = now
        self._thread: threading.Thread | None = None
        self._cancelled = False
        #: True if something may have changed since the last snapshot.
        self._dirty = False
        self._dirty_since = math.inf
        #: True if nothing was written when the snapshot under way began.
        self._quiet = True
        self._due = -math.inf
        self._result: Taken | Exception | None = None
        self._seconds = 0.0
        self._warned = self._given_up = self._has_kept = False
        #: How often the script replaced a file by another one, and which it wrote in place.
        self._replaced: Counter[str] = Counter()
        self._in_place: set[str] = set()
        self._inodes: dict[str, tuple[int, int, int]] = {}

    def poll(self, changed: bool, quiet: bool, urgent: bool = False) -> None:
        """Log the result of the thread, and start it again if the directory changed and is quiet now.

        If `urgent`, the training is about to be stopped: there is no pause after the last snapshot.
        """
        if changed and not self._dirty and not self._given_up:
            self._dirty, self._dirty_since = True, self._now()
        self._collect()
        unrest = _LONGEST_UNREST if self._has_kept else _FIRST_UNREST
        ready = quiet or self._now() >= self._dirty_since + unrest
        if self._thread is None and self._dirty and ready and (urgent or self._now() >= self._due):
            self._dirty, self._quiet = False, quiet
            self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
            self._thread.start()

    @property
    def is_settled(self) -> bool:
        """True if the newest state is kept, or cannot be kept."""
        return self._thread is None and not self._dirty

    def finish(self) -> None:
        """Give up a snapshot under way and wait until its thread has ended, at most a few seconds."""
        self._cancelled = True
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT)
            self._collect()

    def _collect(self) -> None:
        if self._thread is None or self._thread.is_alive():
            return
        self._thread.join()
        self._thread, result, self._result = None, self._result, None
        self._due = self._now() + _PAUSE * self._seconds
        self._has_kept = self._has_kept or isinstance(result, Taken)
        if isinstance(result, Taken) and result.is_new:
            self._note_files(result)
            self._events.write(
                "kept",
                snapshot=result.snapshot.number,
                bytes=result.snapshot.size,
                written=result.written,
                files=len(result.snapshot.files),
                seconds=round(self._seconds, 3),
            )
        elif isinstance(result, (Unsettled, Torn)):
            self._events.write("not-kept", why=str(result))  # the next save is kept
        elif isinstance(result, Exception) and not self._warned:
            self._warned = True
            self._events.warn(f"no snapshot of the checkpoints was taken: {result}")
        if isinstance(result, OSError) and result.errno in _NO_SPACE:
            self._given_up = True

    def _note_files(self, taken: Taken) -> None:
        """Note which files were replaced since the last snapshot, and which were written in place."""
        for name, kept in taken.snapshot.files.items():
            before = self._inodes.get(name)
            if before is not None and before != kept.stamp:
                if before[0] == kept.stamp[0]:
                    self._in_place.add(name)
                else:
                    self._replaced[name] += 1
            self._inodes[name] = kept.stamp

    def _run(self) -> None:
        began = self._now()
        with contextlib.suppress(OSError):  # then it has the niceness of the job
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            linked = [name for name, times in self._replaced.items() if times >= _MIN_REPLACED]
            safe = [name for name in linked if name not in self._in_place]
            self._result = self._store.take(sure=self._quiet, pulse=self._pulse, replaced=safe)
        except _Cancelled:
            self._result = None
        except (CannotKeep, OSError) as error:
            self._result = error
        self._seconds = self._now() - began

    def _pulse(self) -> None:
        if self._cancelled:
            raise _Cancelled
