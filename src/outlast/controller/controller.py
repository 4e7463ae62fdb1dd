"""One pass over an experiment: observe, decide, act. The holder of the lease repeats it.

The controller may be killed at any line. Intents are committed before the scheduler is called, and all other
actions can be repeated. `crashpoints` names the places where a crash is most critical.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outlast.controller import crashpoints
from outlast.controller.dispatch import Dispatch
from outlast.domain import admission, alike_failures, engine, file_errors, outcomes
from outlast.domain.decision import Decision, DecisionKind
from outlast.domain.model import Attempt, EntryKind, JournalEntry, Outcome, RunState
from outlast.domain.observation import JobPhase, JobView, Observations, Report
from outlast.exchange.base import Exchange, FilesGone, ResultGone
from outlast.filesystem import describe_error
from outlast.journal.records import Records
from outlast.schedulers.base import JobRef, Scheduler, SchedulerUnavailable
from outlast.schedulers.host_sizes import HostSizes

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
    #: Runs that were due and not submitted: the budget of the pass was used up; a limit on jobs or runs was
    #: reached; or data was unavailable, and one run, the scout, tests whether it is back.
    put_off: list[str] = field(default_factory=list)
    over_limit: list[str] = field(default_factory=list)
    held_back: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Controller:
    """Makes passes over the runs in `records`, with one scheduler and one exchange.

    `listener` is called with all new entries once they are durable, `heartbeat` often during a pass, and
    `query_hosts` for the first attempt that requests more than the one before.
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
        query_hosts: Callable[[], HostSizes] = HostSizes,
    ) -> None:
        self._records = records
        self._scheduler = scheduler
        self._exchange = exchange
        self._clock = clock
        self._listener = listener
        self._heartbeat = scheduler.heartbeat = heartbeat
        self._dispatch = Dispatch(records, scheduler, exchange, clock, new_batch, heartbeat, query_hosts)
        #: By token: when the report of a running job was last read.
        self._read: dict[str, float] = {}

    @property
    def done(self) -> bool:
        """True if all runs are over or held back."""
        return all(run.state is RunState.HELD_BACK for run in self._records.live().values())

    # One pass.

    def step(self, budget: float = float("inf"), jobs: int = 1) -> Pass:
        """Observe, decide, act. Submit jobs for `budget` seconds at most; the next pass submits the others.

        Each new attempt is submitted as a chain of `jobs` jobs.
        """
        done = Pass()
        self._heartbeat()
        seen = self._observe(done)
        starts = self._settle(seen, done)
        if seen.jobs is None:
            return done  # nothing is submitted to a scheduler that does not respond
        free = self._hold_back(starts)
        done.held_back = _names_without(starts, free)
        admitted = self._dispatch.admit(free, jobs)
        done.over_limit = _names_without(free, admitted)
        size = self._scheduler.largest_batch() if admitted else 1
        # From here on: with many runs, all before may take longer, and each pass must submit something.
        began = time.monotonic()
        for begin in range(0, len(admitted), size):
            if time.monotonic() - began >= budget:
                done.put_off = [start.run for start in admitted[begin:]]
                break
            self._dispatch.send(
                admitted[begin : begin + size], jobs, lambda entries: self._append(entries, done)
            )
            self._heartbeat()
        # Runs whose jobs were rejected for good end now, not in the next pass.
        live = self._records.live()
        sent = (start.run for start in admitted[: len(admitted) - len(done.put_off)])
        self._settle(
            Observations(None), done, [run for run in sent if run in live and live[run].current is None]
        )
        return done

    def _hold_back(self, starts: Sequence[Decision]) -> Sequence[Decision]:
        def has_data(attempt: Attempt) -> bool:
            report = self._report(attempt)
            return report is not None and report.computed

        live = self._records.live().values()
        return admission.hold_back(starts, live, self._records, has_data, self._clock()) if starts else starts

    def _observe(self, done: Pass) -> Observations:
        current = [self._records.current(run) for run in self._records.live().values()]
        attempts = [attempt for attempt in current if attempt is not None]
        try:
            jobs = self._scheduler.poll([JobRef(a.token, a.job, a.intended) for a in attempts])
        except SchedulerUnavailable as error:
            done.jobs, done.scheduler_error = None, str(error)
            return Observations(None)
        done.jobs = len(jobs)
        done.notes.extend(self._scheduler.pop_notes())
        crashpoints.reach("observe.polled")
        reports: dict[str, Report] = {}
        gone: dict[str, str] = {}
        output: dict[str, Sequence[str]] = {}
        for attempt in attempts:
            self._heartbeat()
            view = jobs.get(attempt.token)
            if view is None or view.phase is JobPhase.ENDED or self._should_read(attempt, view):
                report = self._report(attempt, gone)
                if report is not None:
                    reports[attempt.token] = report
                elif view is not None and outcomes.failed_before_training(view, None):
                    output[attempt.token] = self._exchange.last_output(attempt)
        crashpoints.reach("observe.read")
        self._deal_with_strays(jobs.values(), done)
        return Observations(jobs, reports, gone, output)

    def _report(self, attempt: Attempt, gone: dict[str, str] | None = None) -> Report | None:
        """Return the report of an attempt, None if there is none; add a lost directory to `gone`."""
        try:
            return self._exchange.report(attempt)
        except FilesGone as error:
            if gone is not None:
                gone[attempt.token] = error.path
            return None
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

    def _settle(self, seen: Observations, done: Pass, only: Sequence[str] | None = None) -> list[Decision]:
        """Decide and act until only starts of attempts are left, and return these.

        `only` limits this to the runs of these names.
        """
        starts: list[Decision] = []
        names: Iterable[str] = list(self._records.live()) if only is None else only
        for _ in range(MOST_ROUNDS):
            now = self._clock()
            decisions: list[Decision] = []
            live, failed = self._records.live(), self._records.alike_failures()
            retried = alike_failures.add_retried(failed, live.values(), self._records.current, now)
            for name in names:
                run = live.get(name)
                if run is None:
                    continue
                limits = self._records.spec(run.spec).limits
                attempt, patience = self._records.current(run), self._scheduler.patience
                hold_back = alike_failures.why_hold_back(run, failed, retried) if limits.hold_back else None
                if hold_back is not None and not hold_back.final and hold_back.reason not in done.notes:
                    done.notes.append(hold_back.reason)
                decision = engine.decide(run, attempt, seen, limits, patience, now, hold_back)
                if decision is None:
                    continue
                (starts if decision.do is DecisionKind.START else decisions).append(decision)
            if not decisions:
                break
            ended = self._act(decisions, seen, done)
            # An end may hold back runs that were about to start.
            names, starts = [*ended, *(start.run for start in starts)], []
        self._forget_ended(seen)
        # Runs that have had an attempt come before runs that have not.
        live = self._records.live()
        return sorted(starts, key=lambda start: (live[start.run].attempts == 0, live[start.run].position))

    def _act(self, decisions: Sequence[Decision], seen: Observations, done: Pass) -> list[str]:
        """Carry out decisions, and return the names of the runs that may need another one."""
        entries: list[JournalEntry] = []
        for decision in decisions:
            self._heartbeat()
            match decision.do:
                case DecisionKind.RECORD if decision.kind is EntryKind.FAILED:
                    entries.append(self._fail(decision, done))
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
        # What is blocked waits for the next pass.
        return [entry.run for entry in entries if entry.kind is not EntryKind.BLOCKED]

    # Actions.

    def _publish(self, decision: Decision, done: Pass) -> list[JournalEntry]:
        """Publish the accepted result of a run and return the entry for it.

        Return no entry if it cannot be published now: the other runs must not wait for it.
        """
        run = self._records.live()[decision.run]
        attempt = self._records.attempt(decision.token or "")
        assert attempt is not None
        now, patience = self._clock(), self._scheduler.patience
        blocked = [self._entry(file_errors.unblocked(run, attempt))] if attempt.blocked else []
        try:
            publication = self._exchange.publish(attempt)
        except ResultGone as error:
            reason = "%s; `outlast retry %s` computes it again" % (error, run.name)
            return [*blocked, JournalEntry(now, run.name, EntryKind.FAILED, None, {"reason": reason})]
        except OSError as error:
            text, place = describe_error(error), self._exchange.place(attempt)
            done.notes.append("the results of %s cannot be published yet: %s" % (run.name, text))
            verdict = file_errors.decide_when_unpublished(run, attempt, text, place, patience, now)
            if verdict is None or verdict.kind is EntryKind.BLOCKED:
                return [self._entry(verdict)] if verdict else []
            return [*blocked, self._entry(verdict)]
        crashpoints.reach("accept.published")
        reason = "finished with attempt %d" % attempt.number
        data: dict[str, Any] = {"reason": reason}
        if publication.is_empty:
            data = {"reason": reason + ", which wrote no files", "empty": True}
        elif publication.left:
            data = {"reason": "%s; %s" % (reason, publication.left), "left": publication.left}
        return [*blocked, JournalEntry(now, run.name, EntryKind.FINISHED, None, data)]

    def _fail(self, decision: Decision, done: Pass) -> JournalEntry:
        """Return the entry for a run that failed; if its last outputs failed their checks, they are kept."""
        entry = self._entry(decision)
        last = self._records.live()[decision.run].last
        attempt = self._records.attempt(last.token) if last is not None else None
        if last is None or attempt is None or last.outcome is not Outcome.WRONG_OUTPUT:
            return entry
        try:
            place = self._exchange.reject(attempt, decision.reason)
        except OSError as error:
            text = describe_error(error)
            done.notes.append("the outputs of %s cannot be kept in results/: %s" % (decision.run, text))
            return entry
        if not place:
            return entry
        kept = "Its files are in %s; `outlast accept %s` takes them as the result" % (place, decision.run)
        reason = "%s. %s" % (decision.reason.rstrip("."), kept)
        return replace(entry, data={**entry.data, "reason": reason, "rejected": place})

    def _fence(self, decision: Decision, done: Pass) -> list[JournalEntry]:
        """Fence a missing attempt and return the entry that ends it; none if it may still be running."""
        run = self._records.live()[decision.run]
        attempt = self._records.attempt(decision.token or "")
        assert attempt is not None
        try:
            won = self._exchange.fence(attempt)
            report = None if won else self._exchange.report(attempt)
        except OSError as error:
            planned = file_errors.plan_end(run, attempt, self._report(attempt), self._clock())
            return self._without_files(attempt, error, planned.data, done)
        crashpoints.reach("fence.claimed")
        now = self._clock()
        verdict = engine.after_fence(run, attempt, report, won, self._scheduler.patience, now)
        if verdict is None and attempt.blocked:
            verdict = file_errors.unblocked(run, attempt)
        return [self._entry(verdict)] if verdict is not None else []

    def _without_files(
        self, attempt: Attempt, error: OSError, planned: Mapping[str, Any], done: Pass
    ) -> list[JournalEntry]:
        """Return the entry for an attempt that cannot be ended because of its files; none: wait.

        `planned` is the data of the entry that would have ended it.
        """
        run = self._records.live()[attempt.run]
        verdict: Decision | None
        if isinstance(error, FilesGone):
            verdict = file_errors.decide_when_gone(run, attempt, error.path, planned)
        else:
            text, patience = describe_error(error), self._scheduler.patience
            verdict = file_errors.decide_when_blocked(run, attempt, text, planned, patience, self._clock())
            if verdict is None or verdict.kind is EntryKind.BLOCKED:
                what = "attempt %d of %s" % (attempt.number, run.name)
                done.notes.append("%s cannot be settled yet: %s" % (what, text))
        return [self._entry(verdict)] if verdict else []

    def _settle_ended(self, entries: Sequence[JournalEntry], done: Pass) -> list[JournalEntry]:
        """Shut and settle the attempts that are about to end; return the entries that can be recorded.

        When the end of an attempt is recorded, no job works on it and its files are in place, unless they are
        lost (see `file_errors`).
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
                assert attempt is not None
                kept += self._without_files(attempt, error, entry.data, done)
        return kept

    def _request(
        self,
        act: Callable[[Sequence[JobView]], None],
        decisions: Sequence[Decision],
        seen: Observations,
        done: Pass,
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

    def _forget_ended(self, seen: Observations) -> None:
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


def _names_without(starts: Sequence[Decision], rest: Sequence[Decision]) -> list[str]:
    """Return the names of the runs in `starts` that are not in `rest`, a subset of it."""
    if len(starts) == len(rest):
        return []
    kept = {start.run for start in rest}
    return [start.run for start in starts if start.run not in kept]


_POINTS = {
    EntryKind.STARTED: "observe.started",
    EntryKind.ENDED: "observe.ended",
    EntryKind.ACCEPTED: "accept.recorded",
    EntryKind.FINISHED: "accept.finished",
    EntryKind.CANCEL_SENT: "cancel.recorded",
}
