"""A cluster with all the bad habits of real ones, in virtual time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.model import Cause, Outcome, Phase
from outlast.node.words import EXIT_BAD_ORDER, EXIT_NOT_CLAIMED
from outlast.observation import JobPhase, JobView
from outlast.schedulers.base import (
    Answer,
    JobRequest,
    Scheduler,
    SchedulerUnavailable,
    Sought,
    Submission,
)
from outlast.simulation.exchange import SimulatedExchange
from outlast.simulation.node import NodeLog, NodeProgram, RunTruth
from outlast.simulation.scenario import Scenario, Weather
from outlast.simulation.timeline import Timeline

NEVER = float("inf")


@dataclass
class Job:
    """One job as it truly is. What the listing says of it may be nothing, or old."""

    token: str
    number: str
    request: JobRequest
    #: It is in the listing from `listed` on, but not from `hidden` to `back`.
    listed: float
    hidden: float = NEVER
    back: float = NEVER
    phase: JobPhase = JobPhase.QUEUED
    host: str = ""
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    over_time: bool = False
    reason: str = ""
    program: NodeProgram | None = None
    #: How many listings in a row lacked it.
    lacking: int = 0
    #: The view of its current state, made once.
    view: JobView | None = field(default=None, repr=False)

    def visible(self, now: float) -> bool:
        return self.listed <= now and not self.hidden <= now < self.back

    @property
    def cause(self) -> Cause:
        return self.program.cause if self.program else Cause.CLUSTER


class SimulatedCluster(Scheduler):
    """Jobs live on the timeline; `scenario.weather` says how often what goes wrong."""

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        scenario: Scenario,
        runs: Mapping[str, RunTruth],
        exchange: SimulatedExchange,
        computes: Callable[[NodeProgram], None],
        tell: Callable[[str], None],
    ) -> None:
        self.patience = scenario.patience
        self.interval = scenario.interval
        self.weather = scenario.weather
        self.jobs: dict[str, Job] = {}
        #: The listing that the controller got last.
        self.told: Mapping[str, JobView] = {}
        self._timeline = timeline
        self._rng = rng
        self._scenario = scenario
        self._runs = runs
        self._exchange = exchange
        self._computes = computes
        self._tell = tell
        self._forgotten: set[str] = set()
        self._listings: deque[tuple[float, Mapping[str, JobView]]] = deque(maxlen=8)

    def be_calm(self) -> None:
        """From now on nothing more goes wrong."""
        self.weather = Weather()
        self._listings.clear()

    # What the controller asks.

    def render(self, requests: Sequence[JobRequest]) -> str:
        return "\n".join("simulated job %s" % request.name for request in requests)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        return {request.token: self._submit(request) for request in requests}

    def _submit(self, request: JobRequest) -> Submission:
        rng, weather, now = self._rng, self.weather, self._timeline.now
        run = self._runs[self._exchange.orders[request.token].run]
        if run.refused:
            return Submission(Answer.REJECTED, reason="no such partition")
        if rng.random() < weather.rejected:
            return Submission(Answer.REJECTED, reason="too many jobs", transient=True)
        listed, lost = now, rng.random() < weather.lost_after_answer
        unknown = rng.random() < weather.unknown
        if unknown:
            fate = rng.random()
            lost = fate < 0.3
            if fate > 0.6:
                # In the queue and in its listing only later, perhaps after it was given up.
                listed += rng.uniform(0.0, 4.0) * self.patience.missing
        if not lost:
            self._enqueue(request, listed, run)
        self._tell("%s: submitted %s%s" % (request.token, "unheard" * unknown, " and lost" * lost))
        if unknown:
            return Submission(Answer.UNKNOWN, reason="socket timed out")
        return Submission(Answer.ACCEPTED, job="%d" % (1000 + len(self.jobs)))

    def _enqueue(self, request: JobRequest, listed: float, run: RunTruth) -> None:
        job = Job(request.token, "%d" % (1001 + len(self.jobs)), request, listed)
        self.jobs[request.token] = job
        if not run.never_started:
            wait = self._rng.uniform(0.0, self._scenario.queue)
            self._timeline.at(listed + wait, lambda: self._start(job))

    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        rng, now = self._rng, self._timeline.now
        if rng.random() < self.weather.poll_fails:
            raise SchedulerUnavailable("the simulated scheduler did not answer")
        if rng.random() < self.weather.stale:
            oldest = now - self.weather.stale_seconds
            old = [listing for at, listing in self._listings if at >= oldest]
            listing = rng.choice(old) if old else self._list(now)
        else:
            listing = self._list(now)
        self.told = listing
        for job in self.jobs.values():
            job.lacking = 0 if job.token in listing else job.lacking + 1
        return listing

    def _list(self, now: float) -> Mapping[str, JobView]:
        listing = {
            token: job.view or _view(job)
            for token, job in self.jobs.items()
            if token not in self._forgotten and job.visible(now)
        }
        self._listings.append((now, listing))
        return listing

    def cancel(self, views: Sequence[JobView]) -> None:
        if self._rng.random() < self.weather.cancel_fails:
            raise SchedulerUnavailable("the simulated scheduler did not answer")
        for view in views:
            job = self.jobs[view.token]
            if self._rng.random() < self.weather.cancel_ignored:
                continue
            self._tell("%s: cancelled" % job.token)
            if job.phase is JobPhase.QUEUED:
                self._end(job, reason="cancelled")
            elif job.phase is JobPhase.RUNNING:
                self._notify(job, Cause.USER)

    def forget(self, tokens: Sequence[str]) -> None:
        self._forgotten.update(tokens)

    def wait(self, seconds: float) -> None:
        self._timeline.advance(self._timeline.now + seconds)

    def hosts(self) -> Sequence[str]:
        return self._scenario.hosts

    # What happens to jobs.

    def _start(self, job: Job) -> None:
        if job.phase is not JobPhase.QUEUED:
            return
        rng, weather, now = self._rng, self.weather, self._timeline.now
        hosts = self._scenario.hosts
        job.phase, job.started, job.view = JobPhase.RUNNING, now, None
        job.host = rng.choice([host for host in hosts if host not in job.request.avoid] or hosts)
        limit = job.request.time
        if rng.random() < weather.short_limit:
            limit *= rng.uniform(0.5, 0.9)
        self._timeline.at(now + limit, lambda: self._kill(job, Cause.LIMIT))
        if weather.evicted_after:
            after = now + rng.expovariate(1.0 / weather.evicted_after)
            notice = rng.random() < weather.evicted_with_notice
            evict = self._notify if notice else self._kill
            self._timeline.at(after, lambda: evict(job, Cause.CLUSTER))
        if rng.random() < weather.vanishes:
            self._timeline.at(now + rng.uniform(0.0, job.request.time), lambda: self._vanish(job))
        lead = rng.uniform(0.2, 3.0)
        self._timeline.at(now + lead, lambda: self._claim(job))

    def _claim(self, job: Job) -> None:
        if job.phase is not JobPhase.RUNNING:
            return
        rng, token = self._rng, job.token
        order = self._exchange.orders.get(token)
        if order is None:
            self._end(job, exit_code=EXIT_BAD_ORDER)
            return
        if not self._exchange.claim(token, job.number):
            self._tell("%s: found its attempt taken and left" % token)
            self._end(job, exit_code=EXIT_NOT_CLAIMED)
            return
        run = self._runs[order.run]
        training, now = run.training, self._timeline.now
        log = NodeLog(
            host=job.host,
            skew=rng.uniform(-2.0, 2.0),
            began=now,
            tells_steps=training.tells_steps,
            save_seconds=training.save_seconds,
            phases=[(Phase.CLAIM, now)],
        )
        self._exchange.open_log(token, log)
        job.program = NodeProgram(
            self._timeline,
            run,
            token,
            order.spec,
            log,
            startup=rng.uniform(1.0, 8.0),
            trouble=self._scenario.bad_hosts.get(job.host),
            computes=self._computes,
            delivers=self._exchange.deliver,
            ends=lambda code: self._end(job, exit_code=code),
        )

    def _notify(self, job: Job, cause: Cause) -> None:
        """A signal now and a kill after the grace: an eviction with notice, or a cancellation."""
        if job.phase is not JobPhase.RUNNING:
            return
        if job.program is not None:
            job.program.stop(cause)
        # The node program needs a little longer than its training to write its last line.
        self._timeline.at(self._timeline.now + job.request.grace + 5.0, lambda: self._kill(job, cause))

    def _kill(self, job: Job, cause: Cause) -> None:
        if job.phase is not JobPhase.RUNNING:
            return
        self._stop_program(job, cause)
        self._tell("%s: killed (%s)" % (job.token, cause.value))
        self._end(job, signal=9, over_time=cause is Cause.LIMIT, reason="killed by the scheduler")

    def _vanish(self, job: Job) -> None:
        """Its node is gone, or only the scheduler's knowledge of it is."""
        if job.phase is not JobPhase.RUNNING:
            return
        rng, now = self._rng, self._timeline.now
        lives = rng.random() < self.weather.vanished_lives
        job.hidden = now
        if rng.random() < self.weather.vanished_returns:
            job.back = now + rng.uniform(0.2, 4.0) * self.patience.missing
        self._tell("%s: vanished%s" % (job.token, " and goes on" if lives else ""))
        if not lives:
            self._stop_program(job, Cause.CLUSTER)
            self._end(job, reason="its node failed")

    def _stop_program(self, job: Job, cause: Cause) -> None:
        program = job.program
        if program is not None and program.alive:
            program.kill()
            program.cause = cause
            if self._rng.random() < self.weather.torn:
                program.run.store.tear()

    def _end(
        self,
        job: Job,
        exit_code: int | None = None,
        signal: int | None = None,
        over_time: bool = False,
        reason: str = "",
    ) -> None:
        now = self._timeline.now
        job.phase, job.ended, job.view = JobPhase.ENDED, now, None
        job.exit_code, job.signal, job.over_time, job.reason = exit_code, signal, over_time, reason
        if job.hidden == NEVER and self._rng.random() < self.weather.forgets_early:
            job.hidden = now + self._rng.uniform(0.0, self.patience.missing)


def _view(job: Job) -> JobView:
    elapsed = None
    if job.started is not None and job.ended is not None:
        elapsed = job.ended - job.started
    job.view = JobView(
        token=job.token,
        job=job.number,
        phase=job.phase,
        host=job.host,
        started=job.started,
        ended=job.ended,
        elapsed=elapsed,
        exit_code=job.exit_code,
        signal=job.signal,
        outcome=Outcome.OVER_TIME if job.over_time else None,
        reason=job.reason,
    )
    return job.view
