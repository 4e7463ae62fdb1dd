"""A supervised experiment: connects journal, lease, inbox, scheduler and controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from outlast.controller.controller import Controller, Listener, Pass
from outlast.controller.inbox import Inbox, process_requests
from outlast.domain.model import JournalEntry, RunState, Spec
from outlast.errors import (
    JournalDamaged,
    JournalHeld,
    JournalLocked,
    JournalUnavailable,
    NotWritable,
    OutlastError,
)
from outlast.exchange import exchange_for, zipapp
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.lease import Lease
from outlast.journal.sqlite_file import is_blank
from outlast.schedulers import connect
from outlast.schedulers.base import Scheduler
from outlast.schedulers.host_sizes import HostSizes, query_host_sizes
from outlast.schedulers.profile import Profile
from outlast.units import show_duration

#: Seconds between two polls of the scheduler while jobs keep notifying: the more live runs, the longer.
SHORTEST_POLL_INTERVAL = 2.0
LONGEST_POLL_INTERVAL = 15.0
RUNS_PER_SECOND_OF_INTERVAL = 60
#: Seconds between two checks of the inbox while `up` waits.
INBOX_INTERVAL = 1.0
#: Seconds for which a journal that cannot be written is waited for, and between two tries: doubled each time.
LONGEST_OUTAGE = 600.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
#: Timeout in seconds of the query for the largest host of the cluster.
HOSTS_TIMEOUT = 5.0


def _ignore(entries: Sequence[JournalEntry]) -> None:
    """The listener of commands that print no entries."""


class Supervisor:
    """The supervision of one experiment, created by `control`; valid while its lease is held."""

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
        #: The cluster and the profile that `_scheduler` was made for.
        self._connected_to: tuple[str, Mapping[str, Any]] | None = None
        #: The state of the bell at the last poll, and when that was (monotonic clock).
        self._bell_seen = 0
        self._polled = 0.0
        #: Since when (monotonic clock) no pass was completed because the journal cannot be written.
        self._unwritable_since: float | None = None
        self._pause = FIRST_PAUSE

    @property
    def done(self) -> bool:
        """True if all runs are over or held back, and no request waits but in an inbox that is read-only."""
        held_back = (run.state is RunState.HELD_BACK for run in self.journal.live().values())
        return all(held_back) and all(map(self.journal.has_request, self._inbox.names()))

    def step(self, budget: float = float("inf"), jobs: int = 1) -> Pass:
        """Process the requests in the inbox and make one pass (see `Controller.step`)."""
        self.journal.check_location()
        self._lease.renew()
        before = self.journal.last_entry()
        notes = process_requests(self.journal, self._inbox, time.time())
        if self.journal.last_entry() != before:
            spec = self.journal.newest_spec()
            if spec is None or (spec.cluster, spec.profile) != self._connected_to:
                self._controller = None  # the request is for another cluster, or its profile was changed
            if self._listener is not _ignore:
                self._listener([row.entry for row in self.journal.entries(after=before)])
        if not self.journal.live():
            self._unwritable_since = None
            return Pass(notes=notes)
        if self._controller is None:
            self._controller = self._connect()
        self._bell_seen = self._read_bell()
        self._polled = time.monotonic()
        done = self._controller.step(budget, jobs)
        done.notes[:0] = notes
        self._unwritable_since = None
        return done

    def recover(self, error: OutlastError, report: Callable[[str], None]) -> None:
        """Wait until the journal can be written, and forget all that is not in it: no decision counts before.

        `report` is called with a message before each pause, and afterwards. Raise the last error if no pass
        was completed for LONGEST_OUTAGE seconds.
        """
        self._controller = None
        self.journal.forget()
        if self._unwritable_since is None:
            self._unwritable_since, self._pause = time.monotonic(), FIRST_PAUSE
        while True:
            left = self._unwritable_since + LONGEST_OUTAGE - time.monotonic()
            if left <= 0:
                raise error
            pause = min(self._pause, left)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            report("%s. Jobs continue; next try in %s" % (error, show_duration(pause)))
            time.sleep(pause)
            try:
                self.journal.reopen()
                self._lease.renew_now()
            except (JournalUnavailable, JournalLocked) as again:
                error = again
                continue
            report("it can be written again; continuing from what is in it")
            return

    def wait(self, tick: Callable[[], None] = lambda: None) -> None:
        """Wait until something may have changed; `tick` is called about once a second meanwhile."""
        if self._scheduler is None:
            time.sleep(INBOX_INTERVAL)
            return
        until = time.monotonic() + self._scheduler.interval
        requests = self._inbox.names()
        while (left := until - time.monotonic()) > 0 and self._inbox.names() == requests:
            has_rung = self._read_bell() != self._bell_seen
            if has_rung and time.monotonic() - self._polled >= self._poll_interval():
                return
            began, pause = time.monotonic(), min(INBOX_INTERVAL, left)
            tick()
            self._scheduler.wait(pause)
            self._lease.renew()
            if time.monotonic() - began < pause * 0.9:
                return

    def _read_bell(self) -> int:
        """Return a number that changes whenever a job touches the bell file."""
        try:
            return self.experiment.bell.stat().st_mtime_ns
        except OSError:
            return 0  # no job has touched it yet, or it cannot be read now

    def _poll_interval(self) -> float:
        """Return the least seconds between two polls; it grows with the number of live runs."""
        seconds = len(self.journal.live()) / RUNS_PER_SECOND_OF_INTERVAL
        return min(LONGEST_POLL_INTERVAL, max(SHORTEST_POLL_INTERVAL, seconds))

    def _connect(self) -> Controller:
        spec = self.journal.newest_spec()
        assert spec is not None
        self._connected_to = spec.cluster, spec.profile
        self._scheduler = connect(spec, self.experiment.identity, self.experiment.params)
        if self._timeout is not None:
            self._scheduler.timeout = min(self._timeout, self._scheduler.timeout)
        program = self.experiment.zipapp(zipapp.digest())
        if not program.is_file():
            with suppress(OSError):  # the exchange builds it before a job is submitted, and reports the error
                zipapp.build(program)
        return Controller(
            self.journal,
            self._scheduler,
            exchange_for(self.experiment, program, spec, self._scheduler),
            listener=self._listener,
            heartbeat=self._lease.renew,
            query_hosts=lambda: _query_hosts(spec, self.experiment),
        )


def _query_hosts(spec: Spec, experiment: Experiment) -> HostSizes:
    """Return what the largest host of the cluster has."""
    kind = spec.profile.get("scheduler", spec.cluster)
    profile = Profile.from_dict({**spec.profile, "name": spec.cluster})
    return query_host_sizes(kind, profile, str(experiment.root), HOSTS_TIMEOUT)


@contextmanager
def control(
    experiment: Experiment,
    purpose: str,
    listener: Listener = _ignore,
    timeout: float | None = None,
) -> Iterator[Supervisor]:
    """Hold the lease of the experiment. Raise JournalHeld if another controller holds it.

    `timeout` limits the seconds of one call of the scheduler, if the scheduler's own limit is longer.
    """
    if experiment.journal.exists():
        is_blank(experiment.journal)  # raises if a journal was emptied, which must not be initialised again
    journal = Journal(experiment.journal, create=True)
    try:
        journal.check()
        lease = Lease(journal, purpose)
        lease.acquire()
        try:
            yield Supervisor(experiment, journal, lease, listener, timeout)
        finally:
            # It was taken over, or cannot be written: the next controller finds this process dead.
            with suppress(JournalDamaged, JournalHeld, NotWritable):
                lease.release()
    finally:
        journal.close()
