"""Checks after every pass of the controller, not only at the end."""

from __future__ import annotations

from collections.abc import Callable

from outlast.controller.dispatch import MINUTE
from outlast.domain.engine import CANCEL_AGAIN, MOST_RELEASES
from outlast.domain.model import Attempt, Run, RunState
from outlast.domain.observation import JobPhase, JobView, Report
from outlast.domain.policy import CLUSTER_PATIENCE
from outlast.journal.records import Records
from outlast.simulation.scenario import Scenario
from outlast.simulation.simulated_cluster import SimulatedCluster
from outlast.simulation.simulated_exchange import SimulatedExchange
from outlast.simulation.timeline import Timeline


class PassChecks:
    """Calls `report_violation(run, text)` for every violation."""

    def __init__(
        self,
        scenario: Scenario,
        timeline: Timeline,
        records: Records,
        cluster: SimulatedCluster,
        exchange: SimulatedExchange,
        report_violation: Callable[[str, str], None],
    ) -> None:
        self._scenario = scenario
        self._timeline = timeline
        self._records = records
        self._cluster = cluster
        self._exchange = exchange
        self._report_violation = report_violation
        #: Attempts that had ended before this pass.
        self._over: set[str] = set()
        #: When the controller first saw a hold, by token and number of the hold.
        self._hold_seen_at: dict[tuple[str, int], float] = {}
        #: Indices of submissions: the first of the current controller, and the first not yet checked.
        self._first = self._unchecked = 0

    def after_pass(self) -> None:
        """Check the state after one pass."""
        self._count_active()
        # The controller counts by its own clock, which may be wrong.
        if not self._scenario.weather.clock_jumps:
            self._count_submissions()
        self._check_strays()
        for run in self._records.live().values():
            attempt = self._records.current(run)
            view = (self._cluster.last_listing or {}).get(attempt.token) if attempt is not None else None
            if attempt is not None and view is not None:
                self._check_job(run, attempt, view)

    def _count_active(self) -> None:
        active = sum(run.state is RunState.ACTIVE for run in self._records.live().values())
        for most in (self._scenario.spec.parallel, self._scenario.most_jobs):
            if most is not None and active > most:
                self._report_violation("", "%d runs were under way, but %d are allowed" % (active, most))

    def _count_submissions(self) -> None:
        rate, sent = self._scenario.submit_rate, self._cluster.sent
        for last in range(self._unchecked, len(sent)):
            if rate is not None and last - rate >= self._first and sent[last] - sent[last - rate] < MINUTE:
                self._report_violation("", "more than %d jobs were sent within a minute" % rate)
        self._unchecked = len(sent)

    def forget_submissions(self) -> None:
        """Restart the count of submissions for a new controller, which does not know the earlier ones."""
        self._first = self._unchecked = len(self._cluster.sent)

    def _check_strays(self) -> None:
        for token, view in (self._cluster.last_listing or {}).items():
            job = self._cluster.jobs[token]
            if (
                token in self._over
                and view.phase is not JobPhase.ENDED
                and job.requested_at < self._timeline.now
            ):
                self._report_violation("", "%s is over, but its job was not cancelled" % token)
        self._over = set(self._exchange.given_up)

    def _check_job(self, run: Run, attempt: Attempt, view: JobView) -> None:
        token, job, now = attempt.token, self._cluster.jobs[attempt.token], self._timeline.now
        # While an attempt's end cannot be settled, notes about it do not matter.
        steady = not self._scenario.weather.files_fail
        if view.phase is not JobPhase.ENDED and view.restarts > attempt.restarts and steady:
            self._report_violation(run.name, "the restart of %s was not recorded" % token)
        is_current = self._exchange.last_report_at.get(token) == now
        idle = _idle_starts(self._exchange.last_reports[token]) if is_current else 0
        most = CLUSTER_PATIENCE * self._scenario.spec.limits.without_progress
        if idle >= most and view.phase is JobPhase.RUNNING and not job.requested_at:
            self._report_violation(
                run.name, "%s was started %d times without progress, and still runs" % (token, idle)
            )
        waits = view.phase is JobPhase.QUEUED and view.reason and not run.cancel_asked
        if waits and attempt.waits_since is None and steady:
            self._report_violation(
                run.name, "the reason why %s waits was not recorded: %s" % (token, view.reason)
            )
        if attempt.releases > MOST_RELEASES:
            self._report_violation(run.name, "%s was released %d times" % (token, attempt.releases))
        if view.phase is not JobPhase.HELD or job.phase is not JobPhase.HELD:
            return
        since = max(self._hold_seen_at.setdefault((token, job.holds), now), job.requested_at)
        longest = max(self._scenario.patience.longest_pause, CANCEL_AGAIN)
        if now - since > longest and not self._scenario.weather.clock_jumps:
            self._report_violation(
                run.name, "%s was held for %.0f s and nothing was done" % (token, now - since)
            )


def _idle_starts(report: Report) -> int:
    """Return the number of last starts in a row that are over and saved nothing."""
    kept = [number for number, leg in enumerate(report.earlier, start=1) if leg.changed or leg.saves]
    return len(report.earlier) - max(kept, default=0)
