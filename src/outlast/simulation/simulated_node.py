"""A model of the node program and the training script: their actions over time, and their logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.domain.model import Cause, Outcome, Phase, Spec
from outlast.node.time_limits import limits_for
from outlast.simulation.scenario import BUG, WRONG, Nature, TrainingModel
from outlast.simulation.simulated_checkpoints import LegKey, SimulatedCheckpoints
from outlast.simulation.simulated_log import HEARTBEAT, NodeLog
from outlast.simulation.timeline import Timeline


@dataclass
class RunTruth:
    """The true state of a run."""

    name: str
    training: TrainingModel
    store: SimulatedCheckpoints
    fluke_at: int | None
    refused: bool = False
    #: The most starts of each of its jobs.
    most_starts: float = float("inf")
    #: The scheduler holds every job of it for good.
    held_for_good: bool = False
    flukes: int = 0
    #: Node programs that are computing.
    computing: list[NodeProgram] = field(default_factory=list)


class NodeProgram:
    """One start of a job, from the claim of its leg to its end or kill."""

    def __init__(
        self,
        timeline: Timeline,
        run: RunTruth,
        leg: LegKey,
        spec: Spec,
        log: NodeLog,
        startup: float,
        host_failure: Outcome | None,
        on_compute: Callable[[NodeProgram], None],
        on_deliver: Callable[[LegKey, int], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.run = run
        self.leg = leg
        self.log = log
        self.alive = True
        #: The true cause of its end, to which the engine's is compared.
        self.cause = Cause.CLUSTER
        self._timeline = timeline
        self._spec = spec
        self._on_compute = on_compute
        self._on_deliver = on_deliver
        self._on_end = on_end
        self._limits = limits_for(spec.resources.time, spec.checkpoints.grace, log.began, 0.0)
        self._stopped: Cause | None = None
        self._leaving = False
        self._handing_over = False
        self._cleaning_up = False
        self._generation = 0
        self._step = 0
        self._since = 0.0
        #: The step of the next event, and the plan to which the event belongs.
        self._milestone = 0
        self._plan = 0
        begin = log.began
        log.phases.append((Phase.STAGE, begin + 0.1 * startup))
        if host_failure is not None:
            timeline.at(begin + 0.7 * startup, lambda: self._fail_by_host(host_failure))
            return
        log.phases.append((Phase.UNPACK, begin + 0.6 * startup))
        log.phases.append((Phase.ENVIRONMENT, begin + 0.9 * startup))
        timeline.at(begin + startup, self._compute)

    def kill(self) -> None:
        """Kill it as by SIGKILL or a power failure: nothing more is written."""
        self.alive = False
        self.log.closed = min(self.log.closed, self._timeline.now)
        self._leave_computing()

    def stop(self, cause: Cause) -> None:
        """Request a stop, at the scheduler's signal or the time limit; kill the training after the grace."""
        if not self.alive or self._stopped is not None:
            return
        self._stopped = cause
        if self._handing_over or self not in self.run.computing:
            return
        now, training = self._timeline.now, self.run.training
        kill_at = self._limits.deadline
        if cause is not Cause.LIMIT:
            kill_at = min(kill_at, now + self._spec.checkpoints.grace)
        self._timeline.at(kill_at, self._kill_training)
        if not training.stops_on_request:
            return
        self._leaving = True
        if now < self._since:
            # Still loading: it notices the request before its first step and has nothing to save.
            self._plan += 1
            self._timeline.at(self._since, self._leave)
            return
        boundary = self._step + int((now - self._since) / training.step_seconds) + 1
        if boundary < self._milestone:
            self._milestone = boundary
            self._schedule(saves=True)

    def give_way(self) -> None:
        """End because another job has claimed the attempt."""
        if self.alive and not self._cleaning_up:
            self._end(Outcome.EVICTED, "the attempt was given up or taken over", Cause.CLUSTER)

    @property
    def next_heartbeat(self) -> float:
        """The time of the next heartbeat, at which it checks whether the attempt is still its own."""
        return self.log.began + HEARTBEAT * ((self._timeline.now - self.log.began) // HEARTBEAT + 1)

    def _fail_by_host(self, host_failure: Outcome) -> None:
        if self.alive and not self._cleaning_up:
            self._end(host_failure, "failure of the host: %s" % host_failure.value, Cause.CLUSTER)

    def _compute(self) -> None:
        if not self.alive or self._cleaning_up:
            return
        now, log, training = self._timeline.now, self.log, self.run.training
        log.phases.append((Phase.COMPUTE, now))
        if self._stopped is not None:
            self._end(Outcome.EVICTED, "stopped before the training had started", self._stopped)
            return
        if training.save_every:
            step, log.resumed_from, self._generation = self.run.store.load()
            log.loaded, log.resumed, self._step = now, step, step or 0
        self._since = now + training.load_seconds
        self._on_compute(self)
        self.run.computing.append(self)
        self._timeline.at(self._limits.stop_at, lambda: self.stop(Cause.LIMIT))
        self._next()

    def _next(self) -> None:
        training, step = self.run.training, self._step
        self._milestone = training.steps
        if training.save_every:
            self._milestone = min(self._milestone, (step // training.save_every + 1) * training.save_every)
        for special in (training.bug_at, self.run.fluke_at):
            if special is not None and special > step:
                self._milestone = min(self._milestone, special)
        self._schedule(saves=self._is_save(self._milestone))

    def _is_save(self, step: int) -> bool:
        training = self.run.training
        due = training.save_every and (step % training.save_every == 0 or self._leaving)
        return bool(due) and step < training.steps and step != training.bug_at

    def _schedule(self, saves: bool) -> None:
        training = self.run.training
        self._plan += 1
        plan = self._plan
        when = self._since + (self._milestone - self._step) * training.step_seconds
        if saves:
            when += training.save_seconds
        self._timeline.at(when, lambda: self._reach(plan))

    def _reach(self, plan: int) -> None:
        if not self.alive or plan != self._plan or self._handing_over:
            return
        training, run = self.run.training, self.run
        self._step, self._since = self._milestone, self._timeline.now
        if self._step == training.bug_at:
            self._end(training.bug_outcome, BUG, Cause.TRAINING, "bug")
        elif self._step == run.fluke_at:
            run.fluke_at = None
            run.flukes += 1
            self._end(Outcome.CRASHED, "ConnectionResetError (data.py line 7)", Cause.TRAINING, "fluke")
        elif self._step == training.steps:
            self._hand_over()
        elif self._is_save(self._step) and not self._save():
            self._end(Outcome.CRASHED, "Superseded: a newer attempt has loaded", Cause.CLUSTER, "superseded")
        elif self._leaving:
            self._leave()
        else:
            self._next()

    def _leave(self) -> None:
        """Exit after saving; the outcome depends on the cause of the stop."""
        if self.alive and not self._handing_over:
            outcome = Outcome.EVICTED if self._stopped is Cause.CLUSTER else Outcome.CONTINUE
            self._end(outcome, "the training has saved", self._stopped or Cause.LIMIT)

    def _save(self) -> bool:
        if not self.run.store.save(self._step, self.leg, self._generation):
            return False
        self.log.saves.append((self._timeline.now, self._step))
        return True

    def _kill_training(self) -> None:
        if self.alive and not self._handing_over and self._stopped is not None:
            outcome = Outcome.OVER_TIME if self._stopped is Cause.LIMIT else Outcome.EVICTED
            self._end(outcome, "did not stop on request and was killed", self._stopped)

    def _hand_over(self) -> None:
        now, log = self._timeline.now, self.log
        self._leave_computing()
        self._handing_over = True
        log.phases.append((Phase.VALIDATE, now))
        if self.run.training.nature is Nature.WRONG:
            self._end(Outcome.WRONG_OUTPUT, WRONG, Cause.TRAINING, "outputs")
            return
        log.phases.append((Phase.DELIVER, now + 0.5))
        self._timeline.at(now + 2.0, self._deliver)

    def _deliver(self) -> None:
        if self.alive and not self._cleaning_up:
            self._on_deliver(self.leg, self._step)
            self._end(Outcome.FINISHED, "the training finished", Cause.TRAINING)

    def _end(self, outcome: Outcome, detail: str, cause: Cause, signature: str | None = None) -> None:
        """Clean up, write the last line and exit."""
        now, log = self._timeline.now, self.log
        self._leave_computing()
        self._handing_over = self._cleaning_up = True
        log.phases = [*(begun for begun in log.phases if begun[1] <= now), (Phase.CLEAN_UP, now)]
        self.cause = cause
        self._timeline.at(now + 0.5, lambda: self._exit(outcome, detail, signature))

    def _exit(self, outcome: Outcome, detail: str, signature: str | None) -> None:
        if not self.alive:
            return
        self.alive = False
        log = self.log
        log.ended, log.outcome, log.detail, log.signature = self._timeline.now, outcome, detail, signature
        no_failure = (Outcome.FINISHED, Outcome.CONTINUE, Outcome.OVER_TIME, Outcome.EVICTED)
        self._on_end(0 if outcome in no_failure else 1)

    def _leave_computing(self) -> None:
        if self in self.run.computing:
            self.run.computing.remove(self)
