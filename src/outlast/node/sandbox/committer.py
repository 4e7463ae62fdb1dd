"""From time to time the checkpoints of a running job are brought to safety: only what has left the sandbox
survives a hard kill.

Over Chirp, in a thread beside the supervision, where the starter offers it. Elsewhere by a restart in place:
the training is told to stop, and once it has saved, the job leaves with a code that makes HTCondor take
`travel` and start it again. A commit that fails is tried again later; it never stops a training.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Callable, Mapping

from outlast.node.event_log import EventLog
from outlast.node.legs import Leg
from outlast.node.order import WorkOrder
from outlast.node.progress_file import newest_step
from outlast.node.sandbox import commit, layout
from outlast.node.sandbox.chirp import Chirp, ChirpError
from outlast.node.sandbox.commit import Sandbox

#: Seconds between two updates of the job's ad; the starter passes them on every few minutes.
TELL_EVERY = 60.0
#: Seconds before a commit that failed is tried again, at first; it doubles up to the usual interval.
FIRST_PAUSE = 30.0
#: Seconds that the end of a job waits for the thread, once its connection is cut.
_PATIENCE = 5.0
#: Answers that mean: not on this pool.
_NOT_OFFERED = (-1, -2, -8)
#: How often the first connection is tried before other means are taken.
_TRIES = 3
_UNABLE = "cannot-restart"


class _CommitFailed(Exception):
    """The job must end; nobody waits for this commit any more."""


class Committer:
    """`look` and `wants_restart` belong to the supervision's thread, as does the event log."""

    def __init__(
        self,
        order: WorkOrder,
        leg: Leg,
        events: EventLog,
        output: str,
        came_from: layout.Commit | None,
        environ: Mapping[str, str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sandbox = Sandbox(order.home, output)
        self._leg = leg
        self._events = events
        self._every = order.commit_every
        self._environ = environ
        self._now = now
        self._how = order.commit
        self._before = commit.received_commit(self._sandbox, came_from)
        #: The job is to be started again in this place.
        self.restarts = False
        self._serial = layout.read_serial(order.home)
        #: The commit that was begun and not completed, if any.
        self._failed: list[int] = []
        self._work: threading.Thread | None = None
        self._chirp: Chirp | None = None
        self._over = False
        #: What the thread leaves for `look`: the event to write, or the error.
        self._result: dict[str, object] | OSError | None = None
        self._announced = False
        #: Something changed since the last commit; or came along, but from no commit.
        self._dirty = False
        self._unsent = self._before is None and any(
            not name.startswith(".") for name in os.listdir(order.checkpoints)
        )
        self._quiet = True
        self._due = now() + self._every
        self._pause = min(FIRST_PAUSE, self._every)
        self._tell_at = now()
        self._tries = 0
        self._telling = True

    # In the supervision's thread.

    def look(self, changed: bool) -> None:
        """`changed`: there is something new in the checkpoint directory since the last look."""
        self._dirty = self._dirty or changed
        self._quiet = not changed
        self._collect()
        if self._work is not None or self._how not in ("chirp", "auto"):
            return
        if not self._announced:
            if self._now() >= self._tell_at:
                self._start(self._announce)
        elif self._is_due():
            self._dirty = self._unsent = False
            self._start(self._commit)
        elif self._telling and self._now() >= self._tell_at:
            self._start(self._tell)

    def wants_restart(self) -> bool:
        """The training is to be told to stop, so that what it saves gets out and the job starts again."""
        return self._how == "restart" and self._is_due() and not os.path.exists(self._unable)

    def stopped(self, *, saved: bool) -> None:
        """It was told to stop for a restart and has ended. If it did not save, it is not asked again."""
        self.restarts = True
        if not saved:
            with open(self._unable, "w", encoding="ascii"):
                pass

    def finish(self) -> None:
        """No commit is under way when this returns, unless it hangs in the kernel."""
        self._over = True
        if self._work is not None:
            chirp = self._chirp
            if chirp is not None:
                chirp.abandon()
            self._work.join(_PATIENCE)
        self._how = "never"

    @property
    def _unable(self) -> str:
        return os.path.join(self._sandbox.travel, _UNABLE)

    def _is_due(self) -> bool:
        """In a quiet moment; a directory that is never quiet is taken as it is after twice the time."""
        now = self._now()
        news = self._dirty or (self._unsent and self._how != "restart")
        return news and now >= self._due and (self._quiet or now >= self._due + self._every)

    def _start(self, work: Callable[[], dict[str, object]]) -> None:
        self._work = threading.Thread(target=self._run, args=(work,), name="commit", daemon=True)
        self._work.start()

    def _collect(self) -> None:
        """What came of the thread's work."""
        if self._work is None or self._work.is_alive():
            return
        self._work.join()
        self._work, result, self._result = None, self._result, None
        if isinstance(result, OSError):
            self._note_failure(result)
        elif result:
            self._events.write("committed", **result)
            self._due = self._now() + self._every
            self._pause = min(FIRST_PAUSE, self._every)

    def _note_failure(self, error: OSError) -> None:
        if not self._announced:
            self._tries += 1
            self._tell_at = self._now() + self._pause
            offered = not isinstance(error, ChirpError) or error.code not in _NOT_OFFERED
            if offered and self._tries < _TRIES:
                return
            self._how = "restart" if self._how == "auto" else "never"
            instead = "by restarts in place" if self._how == "restart" else "not at all"
            self._events.warn(f"checkpoints cannot be committed over chirp ({error}); it is done {instead}")
            return
        self._dirty = True
        self._due = self._now() + self._pause
        self._events.warn(f"a commit failed ({error}); it is tried again in {self._pause:.0f} s")
        self._pause = min(self._pause * 2, max(self._every, FIRST_PAUSE))

    # In the commit's thread.

    def _run(self, work: Callable[[], dict[str, object]]) -> None:
        try:
            chirp = Chirp.connect(self._environ)
            if chirp is None:
                raise ChirpError("the scheduler offers none to this job", _NOT_OFFERED[0])
            with chirp:
                self._chirp = chirp
                self._result = work()
        except _CommitFailed:
            self._result = None
        except OSError as error:
            self._result = error
        finally:
            self._chirp = None

    def _pulse(self) -> None:
        if self._over:
            raise _CommitFailed

    def _connection(self) -> Chirp:
        assert self._chirp is not None
        return self._chirp

    def _announce(self) -> dict[str, object]:
        """That this leg has begun, and what is known of those before it."""
        commit.send_news(self._connection(), self._sandbox, self._leg, earlier=True)
        self._announced = True
        return {}

    def _commit(self) -> dict[str, object]:
        chirp, began = self._connection(), self._now()
        for serial in self._failed:
            # Half of a commit counts for nothing, and halves would pile up.
            chirp.remove(f"{layout.COMMITTED}/{layout.commit_name(serial)}")
        self._serial += 1
        self._failed = [self._serial]
        self._before, sent = commit.send_state(chirp, self._sandbox, self._before, self._serial, self._pulse)
        self._failed = []
        commit.send_news(chirp, self._sandbox, self._leg, earlier=False)
        commit.remove_older(chirp, self._before)
        self._tell()
        return {"serial": self._serial, "bytes": sent, "seconds": round(self._now() - began, 3)}

    def _tell(self) -> dict[str, object]:
        """Live progress, in the job's ad."""
        self._tell_at = self._now() + TELL_EVERY
        step = newest_step(self._leg.progress_path)
        try:
            if step is not None:
                self._connection().tell("ChirpOutlastStep", step)
            self._connection().tell("ChirpOutlastHeard", int(time.time()))
        except ChirpError as error:
            # Nothing depends on it. A pool that refuses is not asked again, one that is busy a little later.
            self._telling = error.code not in _NOT_OFFERED
        return {}
