"""The stage phase of an attempt: fetch its items one after the other, report progress, and log the costs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable

from outlast.node.event_log import EventLog
from outlast.node.protocol import Outcome
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan

if TYPE_CHECKING:
    from outlast.node.staging.fetch.receipt import FetchProgress
    from outlast.node.staging.stager import Stager

#: Seconds between two updates of the progress file.
_PROGRESS_INTERVAL = 3.0
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class StagingFailed(Exception):
    """The data could not be staged. Its text is for the user; `outcome` is the outcome of the attempt.

    `failure_key` identifies a failure that would repeat in the next attempt; empty if it may be temporary.
    """

    def __init__(self, outcome: Outcome, detail: str, failure_key: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.failure_key = failure_key


class StagePhase:
    """The data of one attempt: `run` stages it, `refresh` keeps it in use, `release` ends that.

    `directory` is the data directory; `progress_path` is the file with the progress of the current item.
    """

    def __init__(self, plan: DataPlan, directory: str, progress_path: str, events: EventLog) -> None:
        self._plan = plan
        self._directory = directory
        self._progress_path = progress_path
        self._events = events
        self._stager: Stager | None = None
        self._reported_at = 0.0

    def run(self, pulse: Callable[[], None]) -> None:
        """Stage all items. Raises StagingFailed, OSError, and anything that the pulse raises."""
        if not self._plan.items:
            return
        # Imported here, since most attempts on a laptop have no data and should start quickly.
        from outlast.node.staging.cache.data_cache import DataCache
        from outlast.node.staging.stager import Stager

        cache = DataCache(self._plan.cache, self._plan.cache_size, self._events.warn)
        self._stager = Stager(
            self._plan, self._directory, cache, pulse, self._report_progress, self._report_wait
        )
        try:
            self._stage_all(self._stager)
        finally:
            with contextlib.suppress(OSError):  # it was never written, or the disk is gone
                os.unlink(self._progress_path)

    def _stage_all(self, stager: Stager) -> None:
        from outlast.node.staging.cache.data_cache import LockLost
        from outlast.node.staging.errors import FINAL, FetchFailed

        for item in self._plan.items:
            began = time.monotonic()
            self._events.write("fetching", name=item.name)
            try:
                staged = stager.stage(item)
                self._events.write("data", **{**staged.to_dict(), "waited": time.monotonic() - began})
            except FetchFailed as failed:
                kind = failed.cause.kind
                self._log_failure(item, began, failed.costs.to_dict(), failed=kind.value)
                failure_key = "%s %s" % (item.name, kind.value) if kind in FINAL else ""
                raise StagingFailed(failed.outcome, str(failed), failure_key) from failed
            except LockLost as lost:
                raise StagingFailed(Outcome.NODE_TROUBLE, str(lost), "") from lost
            except ValueError as error:
                raise StagingFailed(Outcome.CRASHED, str(error), "data") from error
            except BaseException:
                self._log_failure(item, began, {})
                raise

    def refresh(self) -> None:
        """Keep the staged data marked as in use. Must be called regularly while the attempt runs."""
        if self._stager is not None:
            self._stager.refresh()

    def release(self) -> None:
        """Mark the staged data as no longer in use."""
        if self._stager is not None:
            self._stager.release()

    def _log_failure(self, item: DataItem, began: float, costs: dict[str, Any], **facts: str) -> None:
        waited = time.monotonic() - began
        self._events.write("data", name=item.name, arrived=False, waited=waited, troubles=costs, **facts)

    def _report_progress(self, item: DataItem, progress: FetchProgress) -> None:
        now = time.time()
        due = {"next_try_at": progress.next_try_in, "gives_up_at": progress.gives_up_in}
        self._write_progress(
            item,
            done=progress.done,
            total=progress.total,
            rate=round(progress.rate),
            source=progress.source,
            trouble=progress.error,
            **{key: now + seconds for key, seconds in due.items() if seconds is not None},
        )

    def _report_wait(self, item: DataItem, who: str) -> None:
        self._write_progress(item, waits_for=who)

    def _write_progress(self, item: DataItem, **details: Any) -> None:
        now = time.monotonic()
        if now - self._reported_at < _PROGRESS_INTERVAL:
            return
        self._reported_at = now
        line = {"event": "fetching", "at": time.time(), "mono": now, "name": item.name, **details}
        temporary = self._progress_path + ".tmp"
        try:
            with open(os.open(temporary, _NEW_FILE, 0o644), "w", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")
            os.replace(temporary, self._progress_path)
        except OSError:
            return  # a full disk is detected and reported where the data is written
