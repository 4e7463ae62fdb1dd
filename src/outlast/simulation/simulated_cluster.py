"""The scheduler of the simulated cluster, with the faults of real ones."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from outlast.domain.observation import JobPhase, JobView
from outlast.schedulers.base import (
    JobRef,
    JobRequest,
    Scheduler,
    SchedulerUnavailable,
    Submission,
    SubmitStatus,
)
from outlast.simulation.job_lifecycle import JobLifecycle
from outlast.simulation.scenario import Scenario, Weather
from outlast.simulation.simulated_exchange import SimulatedExchange
from outlast.simulation.simulated_job import SimulatedJob
from outlast.simulation.simulated_node import RunTruth
from outlast.simulation.timeline import Timeline

REASONS = ("waits for its turn (Priority)", "waits for a free node (Resources)", "its queue is closed")


class SimulatedCluster(Scheduler):
    """A `Scheduler` whose jobs are driven by `lifecycle`; `scenario.weather` has the fault rates."""

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        scenario: Scenario,
        runs: Mapping[str, RunTruth],
        exchange: SimulatedExchange,
        lifecycle: JobLifecycle,
    ) -> None:
        self.patience = scenario.patience
        self.interval = scenario.interval
        self.most_jobs = scenario.most_jobs
        self.submit_rate = scenario.submit_rate
        self.weather = scenario.weather
        self.jobs = lifecycle.jobs
        #: The result of the last poll; None if it failed.
        self.last_listing: Mapping[str, JobView] | None = None
        #: The times of all submissions, including lost and refused ones.
        self.sent: list[float] = []
        self._timeline = timeline
        self._rng = rng
        self._scenario = scenario
        self._runs = runs
        self._exchange = exchange
        self._lifecycle = lifecycle
        self._listings: deque[tuple[float, Mapping[str, JobView]]] = deque(maxlen=8)

    def stop_faults(self) -> None:
        """Stop all faults from now on."""
        self.weather = self._lifecycle.weather = Weather()
        self._listings.clear()

    # The `Scheduler` interface.

    def render(self, requests: Sequence[JobRequest]) -> str:
        return "\n".join("simulated job %s" % request.name for request in requests)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        return {request.token: self._submit(request) for request in requests}

    def _submit(self, request: JobRequest) -> Submission:
        rng, weather, now = self._rng, self.weather, self._timeline.now
        run = self._runs[self._exchange.orders[request.token].run]
        self.sent.append(now)
        if run.refused:
            return Submission(SubmitStatus.REJECTED, reason="no such partition")
        if rng.random() < weather.rejected:
            return Submission(SubmitStatus.REJECTED, reason="too many jobs", transient=True)
        listed, lost = now, rng.random() < weather.lost_after_accept
        unknown = rng.random() < weather.unknown
        if unknown:
            fate = rng.random()
            lost = fate < 0.3
            if fate > 0.6:
                # Queued and listed later, perhaps after the attempt was given up.
                listed += rng.uniform(0.0, 4.0) * self.patience.missing
        if not lost:
            job = SimulatedJob(request.token, "%d" % (1001 + len(self.jobs)), request, listed)
            self._lifecycle.enqueue(job)
        self._lifecycle.trace(
            "%s: submitted%s%s" % (request.token, ", response lost" * unknown, ", job lost" * lost)
        )
        if unknown:
            return Submission(SubmitStatus.UNKNOWN, reason="socket timed out")
        return Submission(SubmitStatus.ACCEPTED, job="%d" % (1000 + len(self.jobs)))

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        rng, now = self._rng, self._timeline.now
        self.last_listing = None
        if rng.random() < self.weather.poll_fails:
            raise SchedulerUnavailable("the simulated scheduler did not respond")
        if rng.random() < self.weather.stale:
            oldest = now - self.weather.stale_seconds
            old = [listing for at, listing in self._listings if at >= oldest]
            listing = rng.choice(old) if old else self._list(now)
        else:
            listing = self._list(now)
        self.last_listing = listing
        for job in self.jobs.values():
            job.missing_listings = 0 if job.token in listing else job.missing_listings + 1
            job.was_missing = job.was_missing or (job.missing_listings > 0 and not job.forgotten)
        return listing

    def _list(self, now: float) -> Mapping[str, JobView]:
        listing = {}
        for token, job in self.jobs.items():
            if job.is_listed(now):
                if job.phase is JobPhase.QUEUED and self.weather.changing_reasons:
                    self._change_reason(job)
                listing[token] = job.make_view(self._scenario.counts_returns)
        self._listings.append((now, listing))
        return listing

    def _change_reason(self, job: SimulatedJob) -> None:
        if not job.reason or self._rng.random() < self.weather.changing_reasons:
            job.reason, job.view = self._rng.choice(REASONS), None

    def cancel(self, views: Sequence[JobView]) -> None:
        self._apply(views, self._lifecycle.cancel)

    def release(self, views: Sequence[JobView]) -> None:
        self._apply(views, self._lifecycle.release)

    def _apply(self, views: Sequence[JobView], act: Callable[[SimulatedJob], None]) -> None:
        jobs = [self.jobs[view.token] for view in views]
        for job in jobs:
            job.requested_at = self._timeline.now
        if self._rng.random() < self.weather.cancel_fails:
            raise SchedulerUnavailable("the simulated scheduler did not respond")
        for job in jobs:
            if self._rng.random() >= self.weather.cancel_ignored:
                act(job)

    def forget(self, tokens: Sequence[str]) -> None:
        """Forget jobs whose current end was in the last listing; others may have been started again since."""
        for token in tokens:
            job = self.jobs[token]
            was_listed = self.last_listing is not None and self.last_listing[token].ended == job.ended
            job.forgotten = was_listed and job.phase is JobPhase.ENDED

    def wait(self, seconds: float) -> None:
        self._timeline.advance(self._timeline.now + seconds)

    def hosts(self) -> Sequence[str]:
        return self._scenario.hosts
