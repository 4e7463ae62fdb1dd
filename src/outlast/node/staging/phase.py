"""The data of an attempt on its way: brought one after the other, told to whoever watches, and booked."""

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

#: Seconds between two lines about the progress of an item.
_TELL = 3.0


class StagingFailed(Exception):
    """The data did not arrive; in words, with what that means for the attempt.

    `sign` tells what will be the same next time, from other things that will; empty: it may pass.
    """

    def __init__(self, outcome: Outcome, detail: str, sign: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.sign = sign


class StagePhase:
    """`directory` is where data goes, `telling` the file that says how far it has got."""

    def __init__(self, plan: DataPlan, directory: str, telling: str, events: EventLog) -> None:
        self._plan = plan
        self._directory = directory
        self._telling = telling
        self._events = events
        self._arrivals: Stager | None = None
        self._told = 0.0

    def bring(self, pulse: Callable[[], None]) -> None:
        """All items. Raises NotHere, OSError, and whatever the pulse raises."""
        if not self._plan.items:
            return
        # Most attempts on a laptop want no data: they need not wait for all of this to be imported.
        from outlast.node.staging.cache.data_cache import DataCache
        from outlast.node.staging.stager import Stager

        store = DataCache(self._plan.cache, self._plan.cache_size)
        self._arrivals = Stager(self._plan, self._directory, store, pulse, self._tell, self._wait)
        try:
            self._bring_all(self._arrivals)
        finally:
            with contextlib.suppress(OSError):  # it was never written, or the disk has gone
                os.unlink(self._telling)

    def _bring_all(self, arrivals: Stager) -> None:
        from outlast.node.staging.cache.data_cache import LockLost
        from outlast.node.staging.errors import FINAL, FetchFailed

        for item in self._plan.items:
            began = time.monotonic()
            self._events.write("fetching", name=item.name)
            try:
                arrived = arrivals.bring(item)
                self._events.write("data", **{**arrived.to_dict(), "waited": time.monotonic() - began})
            except FetchFailed as given_up:
                self._book(item, began, given_up.costs.to_dict())
                kind = given_up.trouble.kind
                sign = "%s %s" % (item.name, kind.value) if kind in FINAL else ""
                raise StagingFailed(given_up.outcome, str(given_up), sign) from given_up
            except LockLost as lost:
                raise StagingFailed(Outcome.NODE_TROUBLE, str(lost), "") from lost
            except ValueError as error:
                raise StagingFailed(Outcome.CRASHED, str(error), "data") from error
            except BaseException:
                self._book(item, began, {})
                raise

    def beat(self) -> None:
        """What is in use must be seen to be."""
        if self._arrivals is not None:
            self._arrivals.beat()

    def release(self) -> None:
        if self._arrivals is not None:
            self._arrivals.release()

    def _book(self, item: DataItem, began: float, troubles: dict[str, Any]) -> None:
        waited = time.monotonic() - began
        self._events.write("data", name=item.name, arrived=False, waited=waited, troubles=troubles)

    def _tell(self, item: DataItem, progress: FetchProgress) -> None:
        now = time.time()
        due = {"next_try_at": progress.next_try_in, "gives_up_at": progress.gives_up_in}
        self._put(
            item,
            done=progress.done,
            total=progress.total,
            rate=round(progress.rate),
            source=progress.source,
            trouble=progress.trouble,
            **{key: now + seconds for key, seconds in due.items() if seconds is not None},
        )

    def _wait(self, item: DataItem, who: str) -> None:
        self._put(item, waits_for=who)

    def _put(self, item: DataItem, **told: Any) -> None:
        now = time.monotonic()
        if now - self._told < _TELL:
            return
        self._told = now
        line = {"event": "fetching", "at": time.time(), "mono": now, "name": item.name, **told}
        temporary = self._telling + ".tmp"
        try:
            with open(temporary, "w", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")
            os.replace(temporary, self._telling)
        except OSError:
            return  # a full disk is met, and told, where the data is written
