"""The jobs of the simulated cluster: how they start, run, fail and end."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from outlast.domain.model import Cause, Outcome, Phase
from outlast.domain.observation import JobPhase
from outlast.node.protocol import EXIT_BAD_ORDER, EXIT_NOT_CLAIMED
from outlast.simulation.scenario import Scenario
from outlast.simulation.simulated_exchange import SimulatedExchange
from outlast.simulation.simulated_job import NEVER, SimulatedJob
from outlast.simulation.simulated_log import NodeLog
from outlast.simulation.simulated_node import NodeProgram, RunTruth
from outlast.simulation.timeline import Timeline

#: A job that was started this often is held, as Slurm does with JobHoldMaxRequeue.
MOST_STARTS = 30
HOLDS = (Outcome.NETWORK, Outcome.NODE_TROUBLE, Outcome.OUT_OF_DISK, Outcome.NOT_FOUND)
HELD_FOR_GOOD = "held: it has more input than is allowed here"


class JobLifecycle:
    """Drives the simulated jobs. `weather` has the current fault rates."""

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        scenario: Scenario,
        runs: Mapping[str, RunTruth],
        exchange: SimulatedExchange,
        on_compute: Callable[[NodeProgram], None],
        trace: Callable[[str], None],
    ) -> None:
        self.jobs: dict[str, SimulatedJob] = {}
        self.weather = scenario.weather
        self._timeline = timeline
        self._rng = rng
        self._scenario = scenario
        self._runs = runs
        self._exchange = exchange
        self._on_compute = on_compute
        self.trace = trace
        exchange.on_takeover = self._take_over

    # Actions of users and administrators.

    def enqueue(self, job: SimulatedJob) -> None:
        self.jobs[job.token] = job
        self._wait(job, job.listed)

    def cancel(self, job: SimulatedJob) -> None:
        self.trace("%s: cancelled" % job.token)
        job.cancelled, job.requeue_pending = True, False
        stuck = self.weather.cancel_stuck
        if job.phase is JobPhase.RUNNING and stuck and self._rng.random() < stuck:
            self.trace("%s: its host died, and does not end it" % job.token)
            job.stuck = True
            self._stop_program(job, Cause.CLUSTER)
        elif job.stuck and not stuck:
            job.stuck = False
            self._end(job, reason="deleted by an administrator")
        elif job.stuck:
            return
        elif job.phase is JobPhase.RUNNING:
            self._notify(job, Cause.USER)
        elif job.phase is not JobPhase.ENDED:
            self._end(job, reason="cancelled")

    def release(self, job: SimulatedJob) -> None:
        if job.phase is JobPhase.HELD:
            self.trace("%s: released" % job.token)
            job.releases += 1
            job.phase, job.held, job.reason, job.view = JobPhase.QUEUED, NEVER, "", None
            self._wait(job, self._timeline.now)

    # Start of a job.

    def _wait(self, job: SimulatedJob, since: float) -> None:
        if job.starts < self._run(job).most_starts:
            wait = self._rng.uniform(0.0, self._scenario.queue)
            self._timeline.at(since + wait, lambda: self._start(job))

    def _run(self, job: SimulatedJob) -> RunTruth:
        return self._runs[self._exchange.orders[job.token].run]

    def _start(self, job: SimulatedJob) -> None:
        if job.phase is not JobPhase.QUEUED:
            return
        rng, weather, now = self._rng, self.weather, self._timeline.now
        if self._run(job).held_for_good:
            self._hold(job, Outcome.REJECTED, HELD_FOR_GOOD, releasable=False)
            return
        if rng.random() < (weather.held_again if job.holds else weather.held):
            self._hold(job, rng.choice(HOLDS), "held: the site could not prepare the job")
            return
        hosts = self._scenario.hosts
        job.phase, job.started, job.reason, job.view = JobPhase.RUNNING, now, "", None
        job.starts += 1
        job.host = rng.choice([host for host in hosts if host not in job.request.avoid] or hosts)
        limit = job.request.time
        if rng.random() < weather.short_limit:
            limit *= rng.uniform(0.5, 0.9)
        self._later(job, limit, lambda: self._kill(job, Cause.LIMIT))
        if weather.evicted_after:
            self._later(job, rng.expovariate(1.0 / weather.evicted_after), lambda: self._evict(job))
        if rng.random() < weather.vanishes:
            self._later(job, rng.uniform(0.0, job.request.time), lambda: self._vanish(job))
        self._later(job, rng.uniform(0.2, 3.0), lambda: self._claim(job))

    def _later(self, job: SimulatedJob, seconds: float, action: Callable[[], None]) -> None:
        """Schedule `action` for later; it is dropped if this start of the job is over by then."""
        start = job.starts

        def act() -> None:
            if job.phase is JobPhase.RUNNING and job.starts == start and not job.stuck:
                action()

        self._timeline.at(self._timeline.now + seconds, act)

    def _claim(self, job: SimulatedJob) -> None:
        rng, token = self._rng, job.token
        order = self._exchange.orders.get(token)
        if order is None:
            self._end(job, exit_code=EXIT_BAD_ORDER)
            return
        number = self._exchange.claim(token, job.number)
        if not number:
            self.trace("%s: its attempt was already claimed; the job exits" % token)
            self._end(job, exit_code=EXIT_NOT_CLAIMED)
            return
        run = self._runs[order.run]
        training, now = run.training, self._timeline.now
        log = NodeLog(
            host=job.host,
            skew=rng.uniform(-2.0, 2.0),
            began=now,
            reports_steps=training.reports_steps,
            save_seconds=training.save_seconds,
            phases=[(Phase.CLAIM, now)],
        )
        self._exchange.open_log(token, log)
        start = job.starts
        job.program = NodeProgram(
            self._timeline,
            run,
            (token, number),
            order.spec,
            log,
            startup=rng.uniform(1.0, 8.0),
            host_failure=self._scenario.bad_hosts.get(job.host),
            on_compute=self._on_compute,
            on_deliver=self._exchange.deliver,
            on_end=lambda code: self._leave(job, start, code),
        )

    def _take_over(self, token: str) -> None:
        """Let the previous holder of the attempt notice at its next heartbeat, unless it is blind to that."""
        job = self.jobs.get(token)
        program = job.program if job else None
        if program is not None and program.alive and self._rng.random() >= self.weather.blind:
            self._timeline.at(program.next_heartbeat, program.give_way)

    # End of a job.

    def _leave(self, job: SimulatedJob, start: int, code: int) -> None:
        """Handle the exit of a node program, whose start may already be over for the scheduler."""
        if job.phase is not JobPhase.RUNNING or job.starts != start:
            return
        if job.requeue_pending:
            self._requeue(job, "evicted")
        else:
            self._end(job, exit_code=code)

    def _evict(self, job: SimulatedJob) -> None:
        rng, weather = self._rng, self.weather
        job.requeue_pending = not job.cancelled and rng.random() < weather.requeued
        if rng.random() < weather.evicted_with_notice:
            self._notify(job, Cause.CLUSTER)
        elif job.program is not None and rng.random() < weather.cut_off:
            self.trace("%s: cut off, and continues" % job.token)
            job.program.log.cut_off = True
            self._requeue_or_end(job, Outcome.EVICTED, "the scheduler lost contact with its node")
        else:
            self._kill(job, Cause.CLUSTER)

    def _notify(self, job: SimulatedJob, cause: Cause) -> None:
        """Send a stop signal now and kill after the grace: an eviction with notice, or a cancellation."""
        if job.program is not None:
            job.program.stop(cause)
        # The node program needs a little longer than the training process to write its last line.
        self._later(job, job.request.grace + 5.0, lambda: self._kill(job, cause))

    def _kill(self, job: SimulatedJob, cause: Cause) -> None:
        self._stop_program(job, cause)
        self.trace("%s: killed (%s)" % (job.token, cause.value))
        if cause is not Cause.USER and self._rng.random() < self.weather.held_late:
            self._close(job)
            over_time = cause is Cause.LIMIT
            self._hold(
                job, Outcome.OVER_TIME if over_time else Outcome.NODE_TROUBLE, "held: it was ended there"
            )
        elif cause is Cause.LIMIT:
            self._end(job, signal=9, outcome=Outcome.OVER_TIME, reason="killed by the scheduler")
        else:
            outcome = Outcome.EVICTED if cause is Cause.CLUSTER and self._scenario.reports_evictions else None
            self._requeue_or_end(job, outcome, "killed by the scheduler")

    def _vanish(self, job: SimulatedJob) -> None:
        """Remove the job from the listing: its node has failed, or only the scheduler has lost it."""
        lives = self._rng.random() < self.weather.vanished_lives
        self._hide(job, self._rng.random() < self.weather.vanished_returns)
        self.trace("%s: vanished%s" % (job.token, " and continues" if lives else ""))
        if not lives:
            self._stop_program(job, Cause.CLUSTER)
            self._end(job, reason="its node failed")

    def _hide(self, job: SimulatedJob, returns: bool) -> None:
        now = self._timeline.now
        job.hidden, job.back = now, NEVER
        if returns:
            job.back = now + self._rng.uniform(0.2, 4.0) * self._scenario.patience.missing

    def _stop_program(self, job: SimulatedJob, cause: Cause) -> None:
        program = job.program
        if program is not None and program.alive and not program.log.cut_off:
            program.kill()
            program.cause = cause
            if self._rng.random() < self.weather.torn:
                program.run.store.tear()

    def _requeue_or_end(self, job: SimulatedJob, outcome: Outcome | None, reason: str) -> None:
        if job.requeue_pending:
            self._requeue(job, reason)
        else:
            self._end(job, signal=9, outcome=outcome, reason=reason)

    def _requeue(self, job: SimulatedJob, reason: str) -> None:
        """Requeue the job: the scheduler will start it again."""
        self.trace("%s: requeued" % job.token)
        self._close(job)
        job.requeues += 1
        job.requeue_pending = False
        job.phase, job.reason, job.view = JobPhase.QUEUED, reason, None
        if job.starts >= MOST_STARTS:
            self._hold(job, Outcome.NODE_TROUBLE, "held: it was started too often", releasable=False)
        elif self._rng.random() < self.weather.held_late:
            self._hold(job, self._rng.choice(HOLDS), "held: its files could not be transferred back")
        else:
            self._wait(job, self._timeline.now)
        if self._rng.random() < self.weather.vanishes:
            self._hide(job, returns=True)

    def _close(self, job: SimulatedJob) -> None:
        """Add the time of the current start to the slot time."""
        if job.phase is JobPhase.RUNNING and job.started is not None:
            job.slot += self._timeline.now - job.started

    def _hold(self, job: SimulatedJob, outcome: Outcome, reason: str, releasable: bool | None = None) -> None:
        if releasable is None:
            releasable = self._rng.random() < self.weather.releasable
        self.trace("%s: held%s" % (job.token, "" if releasable else " for good"))
        job.holds += 1
        job.phase, job.held, job.view = JobPhase.HELD, self._timeline.now, None
        job.outcome, job.reason, job.releasable, job.requeue_pending = outcome, reason, releasable, False

    def _end(
        self,
        job: SimulatedJob,
        exit_code: int | None = None,
        signal: int | None = None,
        outcome: Outcome | None = None,
        reason: str = "",
    ) -> None:
        now = self._timeline.now
        self._close(job)
        job.phase, job.ended, job.view, job.held = JobPhase.ENDED, now, None, NEVER
        job.exit_code, job.signal, job.outcome, job.reason = exit_code, signal, outcome, reason
        if job.hidden == NEVER and self._rng.random() < self.weather.forgets_early:
            job.hidden = now + self._rng.uniform(0.0, self._scenario.patience.missing)
        if not job.cancelled and job.starts < MOST_STARTS and self._rng.random() < self.weather.revived:
            after = self._rng.uniform(0.0, self._scenario.spec.resources.time)
            self._timeline.at(now + after, lambda: self._revive(job))

    def _revive(self, job: SimulatedJob) -> None:
        """Start an ended job again, as an administrator can with `scontrol requeue`."""
        if job.phase is JobPhase.ENDED and not job.cancelled:
            job.revived, job.forgotten, job.hidden, job.back = True, False, NEVER, NEVER
            self._requeue(job, "requeued by an administrator")
