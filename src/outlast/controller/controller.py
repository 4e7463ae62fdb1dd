"""One pass over an experiment: observe, decide, act. The holder of the lease repeats it.

The controller may be killed at any line. Intents are committed before the scheduler is called, and all other
actions can be repeated. `crashpoints` names the places where a crash is most critical.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from outlast.controller import crashpoints
from outlast.controller.dispatch import Dispatch
from outlast.domain import admission, engine
from outlast.domain.decision import Decision, DecisionKind
from outlast.domain.model import Attempt, EntryKind, JournalEntry, Outcome
from outlast.domain.observation import JobPhase, JobView, Report, Seen
from outlast.exchange.base import Exchange, ResultGone
from outlast.journal.records import Records
from outlast.schedulers.base import JobRef, Scheduler, SchedulerUnavailable

#: The most rounds of decisions in one pass; from the end of an attempt to the next, a run needs at most four.
MOST_ROUNDS = 12

Listener = Callable[[Sequence[JournalEntry]], None]


@dataclass
class Pass:
    """The result of one pass."""

    #: Jobs in the scheduler's listing; None: it did not respond, for the reason in `scheduler_error`.
    jobs: int | None = 0
    scheduler_error: str = ""
    entries: int = 0
    #: Starts that were postponed because the pass had used up its budget.
    put_off: int = 0
    notes: list[str] = field(default_factory=list)


class Controller:
    """Makes passes over the runs in `records`, with one scheduler and one exchange.

    `listener` is called with all new entries once they are durable, `heartbeat` often during a pass.
    """

    def __init__(
        self,
        records: Records,
        scheduler: Scheduler,
        exchange: Exchange,
        *,
        clock: Callable[[], float] = time.time,
        new_batch: Callable[[], str] = lambda: secrets.token_hex(6),
        listener: Listener = lambda entries: None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self._records = records
        self._scheduler = scheduler
        self._exchange = exchange
        self._clock = clock
        self._listener = listener
        self._heartbeat = scheduler.heartbeat = heartbeat
        self._dispatch = Dispatch(records, scheduler, exchange, clock, new_batch, heartbeat)
        #: By token: when the report of a running job was last read.
        self._read: dict[str, float] = {}

    @property
    def done(self) -> bool:
        """True if all runs are over."""
        return not self._records.live()

    # One pass.

    def step(self, budget: float = float("inf"), jobs: int = 1) -> Pass:
        """Observe, decide, act. After `budget` seconds, submit no further jobs in this pass.

        Each new attempt is submitted as a chain of `jobs` jobs.
        """
        began = time.monotonic()
        done = Pass()
        self._heartbeat()
        seen = self._observe(done)
        starts = self._settle(seen, done)
        if seen.jobs is None:
            return done  # nothing is submitted to a scheduler that does not respond
        admitted = self._dispatch.admit(self._hold_back(starts), jobs)
        size = self._scheduler.batch
        for begin in range(0, len(admitted), size):
            if time.monotonic() - began > budget:
                done.put_off = len(admitted) - begin
                break
            self._dispatch.send(
                admitted[begin : begin + size], jobs, lambda entries: self._append(entries, done)
            )
            self._heartbeat()
        # Runs whose jobs were rejected for good end now, not in the next pass.
        submitted = {start.run for start in admitted}
        idle = [name for name, run in self._records.live().items() if run.current is None]
        self._settle(Seen(None), done, [name for name in idle if name in submitted])
        return done

    def _hold_back(self, starts: Sequence[Decision]) -> Sequence[Decision]:
        def has_data(attempt: Attempt) -> bool:
            report = self._report(attempt)
            return report is not None and report.computed

        live = self._records.live().values()
        return admission.hold_back(starts, live, self._records, has_data, self._clock()) if starts else starts

    def _observe(self, done: Pass) -> Seen:
        current = [self._records.current(run) for run in self._records.live().values()]
        attempts = [attempt for attempt in current if attempt is not None]
        try:
            jobs = self._scheduler.poll([JobRef(a.token, a.job, a.intended) for a in attempts])
        except SchedulerUnavailable as error:
            done.jobs, done.scheduler_error = None, str(error)
            return Seen(None)
        done.jobs = len(jobs)
        done.notes.extend(self._scheduler.pop_notes())
        crashpoints.reach("observe.polled")
        reports: dict[str, Report] = {}
        for attempt in attempts:
            self._heartbeat()
            view = jobs.get(attempt.token)
            if view is None or view.phase is JobPhase.ENDED or self._should_read(attempt, view):
                report = self._report(attempt)
                if report is not None:
                    reports[attempt.token] = report
        crashpoints.reach("observe.read")
        self._deal_with_strays(jobs.values(), done)
        return Seen(jobs, reports)

    def _report(self, attempt: Attempt) -> Report | None:
        try:
            return self._exchange.report(attempt)
        except OSError:
            return None  # the job is writing the files, or they are not readable now: a later pass reads them

    def _should_read(self, attempt: Attempt, view: JobView) -> bool:
        """Return True if the report of a live job should be read in this pass.

        That is the case if its job was restarted, and from time to time: the job may have ended without the
        scheduler noticing.
        """
        if view.restarts > attempt.restarts or attempt.jobs > 1:
            return True
        now = self._clock()
        since = self._read.get(attempt.token, attempt.intended)
        if view.phase is not JobPhase.RUNNING or abs(now - since) < self._scheduler.patience.missing:
            return False
        self._read[attempt.token] = now
        return True

    def _settle(self, seen: Seen, done: Pass, only: Sequence[str] | None = None) -> list[Decision]:
        """Decide and act until only starts of attempts are left, and return these.

        `only` limits this to the runs of these names.
        """
        starts: list[Decision] = []
        names: Iterable[str] = list(self._records.live()) if only is None else only
        for _ in range(MOST_ROUNDS):
            now = self._clock()
            decisions: list[Decision] = []
            for name in names:
                run = self._records.live().get(name)
                if run is None:
                    continue
                limits = self._records.spec(run.spec).limits
                attempt = self._records.current(run)
                decision = engine.decide(run, attempt, seen, limits, self._scheduler.patience, now)
                if decision is None:
                    continue
                (starts if decision.do is DecisionKind.START else decisions).append(decision)
            if not decisions:
                break
            names = self._act(decisions, seen, done)
        self._forget_ended(seen)
        # Runs that have had an attempt come before runs that have not.
        live = self._records.live()
        return sorted(starts, key=lambda start: (live[start.run].attempts == 0, live[start.run].position))

    def _act(self, decisions: Sequence[Decision], seen: Seen, done: Pass) -> list[str]:
        """Carry out decisions, and return the names of the runs that may need another one."""
        entries: list[JournalEntry] = []
        for decision in decisions:
            self._heartbeat()
            match decision.do:
                case DecisionKind.RECORD:
                    entries.append(self._entry(decision))
                case DecisionKind.PUBLISH:
                    entries.extend(self._publish(decision, done))
                case DecisionKind.FENCE:
                    entries.extend(self._fence(decision, done))
        for do, act in (
            (DecisionKind.CANCEL_JOB, self._scheduler.cancel),
            (DecisionKind.RELEASE, self._scheduler.release),
        ):
            chosen = [decision for decision in decisions if decision.do is do]
            entries.extend(self._request(act, chosen, seen, done))
        entries = self._settle_ended(entries, done)
        self._append(entries, done)
        for entry in entries:
            if entry.kind is EntryKind.FINISHED:
                run = self._records.run(entry.run)
                if run is not None:
                    self._exchange.retire(run)
        return [entry.run for entry in entries]

    # Actions.

    def _publish(self, decision: Decision, done: Pass) -> list[JournalEntry]:
        """Publish the accepted result of a run and return the entry for it.

        Return no entry if it cannot be published now: the other runs must not wait for it.
        """
        attempt = self._records.attempt(decision.token or "")
        assert attempt is not None
        try:
            self._exchange.publish(attempt)
        except ResultGone as error:
            return [JournalEntry(self._clock(), decision.run, EntryKind.FAILED, None, {"reason": str(error)})]
        except OSError as error:
            done.notes.append("the results of %s cannot be published yet: %s" % (decision.run, error))
            return []
        crashpoints.reach("accept.published")
        reason = "finished with attempt %d" % attempt.number
        return [JournalEntry(self._clock(), decision.run, EntryKind.FINISHED, None, {"reason": reason})]

    def _fence(self, decision: Decision, done: Pass) -> list[JournalEntry]:
        """Fence a missing attempt and return the entry that ends it; none if it may still be running."""
        run = self._records.live()[decision.run]
        attempt = self._records.attempt(decision.token or "")
        assert attempt is not None
        try:
            won = self._exchange.fence(attempt)
        except OSError as error:
            done.notes.append("the missing attempt of %s cannot be fenced yet: %s" % (decision.run, error))
            return []
        crashpoints.reach("fence.claimed")
        report = None if won else self._report(attempt)
        now = self._clock()
        verdict = engine.after_fence(run, attempt, report, won, self._scheduler.patience, now)
        return [self._entry(verdict)] if verdict is not None else []

    def _settle_ended(self, entries: Sequence[JournalEntry], done: Pass) -> list[JournalEntry]:
        """Shut and settle the attempts that are about to end; return the entries that can be recorded.

        When the end of an attempt is recorded, no job works on it and its files are in place.
        """
        kept = []
        for entry in entries:
            self._heartbeat()
            attempt = (
                self._records.attempt(entry.token) if entry.kind is EntryKind.ENDED and entry.token else None
            )
            try:
                if attempt is not None:
                    self._exchange.shut(attempt)  # the scheduler may still restart the job
                    self._exchange.settle(attempt)
                kept.append(entry)
            except OSError as error:
                done.notes.append("the end of %s cannot be settled yet: %s" % (entry.run, error))
        return kept

    def _request(
        self, act: Callable[[Sequence[JobView]], None], decisions: Sequence[Decision], seen: Seen, done: Pass
    ) -> list[JournalEntry]:
        """Cancel or release the jobs of these decisions in one call; return the entries for them."""
        jobs = seen.jobs or {}
        views = [jobs[decision.token] for decision in decisions if decision.token and decision.token in jobs]
        if not views:
            return []
        try:
            act(views)
        except SchedulerUnavailable as error:
            done.scheduler_error = str(error)
            return []
        crashpoints.reach("cancel.sent")
        return [self._entry(decision) for decision in decisions if decision.token in jobs]

    def _deal_with_strays(self, views: Iterable[JobView], done: Pass) -> None:
        """Cancel listed jobs whose attempt is over or unknown, and book the time of twins."""
        current = {run.current for run in self._records.live().values()}
        entries: list[JournalEntry] = []
        strays: list[JobView] = []
        for view in views:
            if view.token in current:
                continue
            attempt = self._records.attempt(view.token)
            decision = engine.decide_twin(attempt, view, self._clock()) if attempt else None
            if decision is not None:
                entries.append(self._entry(decision))
            if view.phase is not JobPhase.ENDED:
                strays.append(view)
        if strays:
            try:
                self._scheduler.cancel(strays)
            except SchedulerUnavailable as error:
                done.scheduler_error = str(error)
                entries = [entry for entry in entries if entry.kind is not EntryKind.TWIN_FOUND]
        self._append(entries, done)

    def _forget_ended(self, seen: Seen) -> None:
        current = {run.current for run in self._records.live().values()}
        jobs = (seen.jobs or {}).values()
        self._read = {token: at for token, at in self._read.items() if token in current}
        gone = [job.token for job in jobs if job.phase is JobPhase.ENDED and job.token not in current]
        if gone:
            self._scheduler.forget(gone)

    # The journal.

    def _entry(self, decision: Decision) -> JournalEntry:
        assert decision.kind is not None
        data = {"reason": decision.reason, **decision.data}
        return JournalEntry(self._clock(), decision.run, decision.kind, decision.token, data)

    def _append(self, entries: Sequence[JournalEntry], done: Pass) -> None:
        if not entries:
            return
        self._records.append(entries)
        done.entries += len(entries)
        kinds = {entry.kind for entry in entries}
        for kind, point in _POINTS.items():
            if kind in kinds:
                crashpoints.reach(point)
        if any(entry.kind is EntryKind.ENDED and entry.data["outcome"] == Outcome.LOST for entry in entries):
            crashpoints.reach("fence.recorded")
        self._listener(entries)


_POINTS = {
    EntryKind.STARTED: "observe.started",
    EntryKind.ENDED: "observe.ended",
    EntryKind.ACCEPTED: "accept.recorded",
    EntryKind.FINISHED: "accept.finished",
    EntryKind.CANCEL_SENT: "cancel.recorded",
}
