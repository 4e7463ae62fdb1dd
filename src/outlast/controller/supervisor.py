"""A controller at work on an experiment directory: journal, lease, scheduler and inbox brought together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from outlast.controller.controller import Controller, Listener, Pass
from outlast.controller.inbox import Inbox, take_requests
from outlast.errors import JournalDamaged, JournalHeld, NotWritable
from outlast.exchange import exchange_for, zipapp
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.lease import Lease
from outlast.journal.sqlite_file import is_blank
from outlast.schedulers import connect
from outlast.schedulers.base import Scheduler

#: Seconds between two questions to the scheduler when jobs ring all the time, and how that grows.
SHORTEST_REST = 2.0
LONGEST_REST = 15.0
RUNS_PER_SECOND_OF_REST = 60
#: How long `up` sleeps at a stretch before it looks into the inbox, in seconds.
GLANCE = 1.0


class Supervisor:
    """Made by `control`; valid while its lease is held."""

    def __init__(
        self,
        experiment: Experiment,
        journal: Journal,
        lease: Lease,
        listener: Listener,
        timeout: float | None,
    ) -> None:
        self.experiment = experiment
        self.journal = journal
        self._lease = lease
        self._listener = listener
        self._timeout = timeout
        self._inbox = Inbox(experiment.inbox)
        self._controller: Controller | None = None
        self._scheduler: Scheduler | None = None
        self._rung = 0
        self._looked = 0.0

    @property
    def done(self) -> bool:
        return not self.journal.live() and not self._inbox.names()

    def step(self, budget: float = float("inf"), jobs: int = 1) -> Pass:
        self.journal.check_place()
        self._lease.beat()
        before = self.journal.last_entry()
        notes = take_requests(self.journal, self._inbox, time.time())
        if self.journal.last_entry() != before:
            # What was asked for may be on another cluster, or retried with other code.
            self._controller = None
            self._listener([row.entry for row in self.journal.entries(after=before)])
        if not self.journal.live():
            return Pass(notes=notes)
        if self._controller is None:
            self._controller = self._connect()
        self._rung = self._bell()
        self._looked = time.monotonic()
        done = self._controller.step(budget, jobs)
        done.notes[:0] = notes
        return done

    def wait(self, glance: Callable[[], None] = lambda: None) -> None:
        """Until something may have changed; `glance` is called about once a second meanwhile."""
        if self._scheduler is None:
            time.sleep(GLANCE)
            return
        until = time.monotonic() + self._scheduler.interval
        asked = self._inbox.names()
        while (left := until - time.monotonic()) > 0 and self._inbox.names() == asked:
            if self._bell() != self._rung and time.monotonic() - self._looked >= self._rest():
                return
            began, pause = time.monotonic(), min(GLANCE, left)
            glance()
            self._scheduler.wait(pause)
            self._lease.beat()
            if time.monotonic() - began < pause * 0.9:
                return

    def _bell(self) -> int:
        """Changes when a job rings."""
        try:
            return self.experiment.bell.stat().st_mtime_ns
        except OSError:
            return 0  # nobody has rung yet, or it cannot be heard this time

    def _rest(self) -> float:
        """Seconds between two questions to a busy scheduler: the more jobs, the rarer and the bigger."""
        return min(LONGEST_REST, max(SHORTEST_REST, len(self.journal.live()) / RUNS_PER_SECOND_OF_REST))

    def _connect(self) -> Controller:
        spec = self.journal.newest_spec()
        assert spec is not None
        self._scheduler = connect(spec, self.experiment.identity, self.experiment.params)
        if self._timeout is not None:
            self._scheduler.timeout = min(self._timeout, self._scheduler.timeout)
        program = self.experiment.zipapp(zipapp.digest())
        if not program.exists():
            try:
                zipapp.build(program)
            except OSError as error:
                raise NotWritable("%s: %s" % (program, error.strerror)) from error
        return Controller(
            self.journal,
            self._scheduler,
            exchange_for(self.experiment, program, spec, self._scheduler),
            listener=self._listener,
            beat=self._lease.beat,
        )


@contextmanager
def control(
    experiment: Experiment,
    purpose: str,
    listener: Listener = lambda entries: None,
    timeout: float | None = None,
) -> Iterator[Supervisor]:
    """Hold the experiment. Raises JournalHeld if another controller does.

    `timeout` bounds how long one question to the scheduler may take, where its own bound is longer.
    """
    if experiment.journal.exists():
        is_blank(experiment.journal)  # one that was emptied must not be begun anew
    journal = Journal(experiment.journal, create=True)
    try:
        journal.check()
        lease = Lease(journal, purpose)
        lease.acquire()
        try:
            yield Supervisor(experiment, journal, lease, listener, timeout)
        finally:
            with suppress(
                JournalDamaged, JournalHeld, NotWritable
            ):  # taken over, or no room: the next one finds us dead
                lease.release()
    finally:
        journal.close()
