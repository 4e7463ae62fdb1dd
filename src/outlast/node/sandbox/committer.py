"""Regular commits of the checkpoints of a running job: only what has left the sandbox survives a hard kill.

The job restarts in place: the training gets the stop signal, and once it has saved, the job exits with a code
that makes HTCondor transfer `travel` and start the job again. With `commit: chirp`, commits go over Chirp
instead, in a thread beside the supervision, if the starter offers that. A commit that fails is retried later;
it never stops the training.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Callable, Mapping

from outlast.node.event_log import EventLog
from outlast.node.legs import Leg
from outlast.node.order import WorkOrder
from outlast.node.progress_file import newest_step
from outlast.node.sandbox import commit, layout
from outlast.node.sandbox.chirp import Chirp, ChirpError
from outlast.node.sandbox.commit import Sandbox
from outlast.untrusted_files import create_file

#: Seconds between two updates of the job's ad; the starter forwards them every few minutes.
AD_UPDATE_INTERVAL = 60.0
#: Seconds before the first retry of a failed commit; they double up to the usual interval.
FIRST_RETRY_PAUSE = 30.0
#: Seconds to wait for the thread at the end of a job, once its connection is aborted.
_JOIN_TIMEOUT = 5.0
#: Response codes of a pool that does not offer this.
_NOT_OFFERED = (-1, -2, -8)
#: How often to try the first connection before giving up Chirp.
_MAX_TRIES = 3
#: A file in `travel`: the training did not save when it was stopped for a restart.
_NO_RESTART = "cannot-restart"


class _CommitCancelled(Exception):
    """The job must end, and the commit under way is given up."""


class Committer:
    """Decides when to commit, and does it. Call its public methods in the thread of the supervision only."""

    def __init__(
        self,
        order: WorkOrder,
        leg: Leg,
        events: EventLog,
        output: str,
        restored: layout.Commit | None,
        environ: Mapping[str, str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sandbox = Sandbox(order.home, output)
        self._leg = leg
        self._events = events
        self._every = order.commit_every
        self._environ = environ
        self._now = now
        # Chirp gives those who run the job access to all files of its owner: only on request.
        self._method = "restart" if order.commit == "auto" else order.commit
        self._before = commit.received_commit(self._sandbox, restored)
        #: True if the job is to be restarted in place.
        self.restarts = False
        self._serial = layout.read_serial(order.home)
        #: The serial of the commit that was begun and not completed, if any.
        self._failed: list[int] = []
        self._work: threading.Thread | None = None
        self._chirp: Chirp | None = None
        self._is_cancelled = False
        #: The result of the thread for `poll`: the fields of an event, or the error.
        self._result: dict[str, object] | OSError | None = None
        self._announced = False
        #: True if something changed since the last commit.
        self._dirty = False
        #: True if the job began with checkpoints that are in no commit.
        self._unsent = self._before is None and any(
            not name.startswith(".") for name in os.listdir(order.checkpoints)
        )
        self._quiet = True
        self._due = now() + self._every
        self._pause = min(FIRST_RETRY_PAUSE, self._every)
        self._publish_at = now()
        self._tries = 0
        self._publishes = True

    def include(self, pack_made: Callable[[], str | None]) -> None:
        """Send with each commit the archive that `pack_made` returns; it is called in the thread."""
        self._sandbox = replace(self._sandbox, pack_made=pack_made)

    # In the thread of the supervision.

    def poll(self, changed: bool) -> None:
        """Log the result of the thread, and start it again if something is due.

        `changed` is True if the checkpoint directory has changed since the last call.
        """
        self._dirty = self._dirty or changed
        self._quiet = not changed
        self._collect()
        if self._work is not None or self._method != "chirp":
            return
        if not self._announced:
            if self._now() >= self._publish_at:
                self._start(self._announce)
        elif self._is_due():
            self._dirty = self._unsent = False
            self._start(self._commit)
        elif self._publishes and self._now() >= self._publish_at:
            self._start(self._publish_progress)

    def wants_restart(self) -> bool:
        """Return True if the training should be stopped now for a restart in place."""
        return self._method == "restart" and self._is_due() and not os.path.exists(self._no_restart_path)

    def note_stopped(self, *, saved: bool) -> None:
        """Record that the training was stopped for a restart. If it did not save, it is the last restart."""
        self.restarts = True
        if not saved:
            create_file(self._no_restart_path).close()

    def finish(self) -> None:
        """Cancel a commit under way and wait until its thread has ended, at most a few seconds."""
        self._is_cancelled = True
        if self._work is not None:
            chirp = self._chirp
            if chirp is not None:
                chirp.abandon()
            self._work.join(_JOIN_TIMEOUT)
        self._method = "never"

    @property
    def _no_restart_path(self) -> str:
        return os.path.join(self._sandbox.travel, _NO_RESTART)

    def _is_due(self) -> bool:
        """Return True if a commit is due and the directory is quiet, or if it is due for a whole interval."""
        now = self._now()
        news = self._dirty or (self._unsent and self._method != "restart")
        return news and now >= self._due and (self._quiet or now >= self._due + self._every)

    def _start(self, work: Callable[[], dict[str, object]]) -> None:
        self._work = threading.Thread(target=self._run, args=(work,), name="commit", daemon=True)
        self._work.start()

    def _collect(self) -> None:
        """Log the result of the thread if it has ended."""
        if self._work is None or self._work.is_alive():
            return
        self._work.join()
        self._work, result, self._result = None, self._result, None
        if isinstance(result, OSError):
            self._note_failure(result)
        elif result:
            self._events.write("committed", **result)
            self._due = self._now() + self._every
            self._pause = min(FIRST_RETRY_PAUSE, self._every)

    def _note_failure(self, error: OSError) -> None:
        if not self._announced:
            self._tries += 1
            self._publish_at = self._now() + self._pause
            offered = not isinstance(error, ChirpError) or error.code not in _NOT_OFFERED
            if offered and self._tries < _MAX_TRIES:
                return
            self._method = "restart"
            self._events.warn(
                f"checkpoints cannot be committed over chirp ({error}); they are committed"
                " by restarts in place"
            )
            return
        self._dirty = True
        self._due = self._now() + self._pause
        self._events.warn(f"a commit failed ({error}); retrying in {self._pause:.0f} s")
        self._pause = min(self._pause * 2, max(self._every, FIRST_RETRY_PAUSE))

    # In the thread that commits.

    def _run(self, work: Callable[[], dict[str, object]]) -> None:
        try:
            chirp = Chirp.connect(self._environ)
            if chirp is None:
                raise ChirpError("the scheduler does not offer it to this job", _NOT_OFFERED[0])
            with chirp:
                self._chirp = chirp
                self._result = work()
        except _CommitCancelled:
            self._result = None
        except OSError as error:
            self._result = error
        finally:
            self._chirp = None

    def _pulse(self) -> None:
        if self._is_cancelled:
            raise _CommitCancelled

    def _connection(self) -> Chirp:
        assert self._chirp is not None
        return self._chirp

    def _announce(self) -> dict[str, object]:
        """Send the logs of this leg, which has just begun, and of earlier legs."""
        commit.send_news(self._connection(), self._sandbox, self._leg, earlier=True)
        self._announced = True
        return {}

    def _commit(self) -> dict[str, object]:
        chirp, began = self._connection(), self._now()
        for serial in self._failed:
            # Incomplete commits are useless and would accumulate.
            chirp.remove(f"{layout.COMMITTED}/{layout.commit_name(serial)}")
        self._serial += 1
        self._failed = [self._serial]
        self._before, sent = commit.send_state(chirp, self._sandbox, self._before, self._serial, self._pulse)
        self._failed = []
        commit.send_news(chirp, self._sandbox, self._leg, earlier=False)
        commit.remove_older(chirp, self._before)
        self._publish_progress()
        return {"serial": self._serial, "bytes": sent, "seconds": round(self._now() - began, 3)}

    def _publish_progress(self) -> dict[str, object]:
        """Write the newest step and the time to the job's ad."""
        self._publish_at = self._now() + AD_UPDATE_INTERVAL
        step = newest_step(self._leg.progress_path)
        try:
            if step is not None:
                self._connection().set_job_attribute("ChirpOutlastStep", step)
            self._connection().set_job_attribute("ChirpOutlastHeard", int(time.time()))
        except ChirpError as error:
            # Nothing depends on it. Do not try again if the pool refuses; try later if it is busy.
            self._publishes = error.code not in _NOT_OFFERED
        return {}
