"""Scenarios drawn from a seed: training runs, limits, the cluster's behaviour, and fault rates.

Probabilities are per event (a submission, a poll, a job, a pass of the controller). Most faults are absent
from most scenarios, so that each also occurs alone; some scenarios have nearly all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

from outlast.domain.model import Checkpoints, Limits, Outcome, Resources, Spec
from outlast.domain.observation import Patience
from outlast.node.time_limits import limits_for

#: The error of a buggy training script, which must be in the reason why its run failed.
BUG = "ZeroDivisionError: division by zero (train.py line 42)"
WRONG = "metrics.json: accuracy is 0.1, at least 0.9 is required."


class Nature(Enum):
    """The way in which a run ends if the cluster does not interrupt it."""

    HEALTHY = "healthy"
    BUGGY = "buggy"  # always raises the same traceback at the same step
    WRONG = "wrong"  # finishes with outputs that do not pass
    HOPELESS = "hopeless"  # saves nothing and needs more time than the limit


@dataclass(frozen=True)
class TrainingModel:
    """A model of a training script with `steps` equal steps; all durations in seconds."""

    nature: Nature
    steps: int
    step_seconds: float
    #: Steps between two checkpoints; 0 for none.
    save_every: int
    save_seconds: float
    #: From the start to the first step.
    load_seconds: float
    #: Saves and exits on a stop request, instead of running until it is killed.
    stops_on_request: bool
    #: Reports the steps that it saves, instead of only writing into the checkpoint directory.
    reports_steps: bool
    bug_at: int | None = None
    bug_outcome: Outcome = Outcome.CRASHED
    #: The step of a failure that occurs once.
    fluke_at: int | None = None


@dataclass(frozen=True)
class Weather:
    """Fault rates. By default there are no faults."""

    #: Mean seconds of running until a job is evicted; 0 for never.
    evicted_after: float = 0.0
    evicted_with_notice: float = 0.0
    #: An evicted job is requeued by the scheduler. Evicted without notice, it may only be cut off, and
    #: continues; it notices when another job claims its attempt, unless it is blind to that.
    requeued: float = 0.0
    cut_off: float = 0.0
    blind: float = 0.0
    #: An ended job is started again.
    revived: float = 0.0
    #: A job is held instead of being started, held again after a release, and held instead of being ended or
    #: requeued.
    held: float = 0.0
    held_again: float = 0.0
    held_late: float = 0.0
    releasable: float = 0.0
    #: The reason why a job waits changes from poll to poll.
    changing_reasons: float = 0.0
    #: A running job disappears from the listing; some continue to compute, some of those reappear.
    vanishes: float = 0.0
    vanished_lives: float = 0.0
    vanished_returns: float = 0.0
    #: An accepted job is lost before it starts.
    lost_after_accept: float = 0.0
    #: The response to a submission is lost; the job is queued, queued later, or lost.
    unknown: float = 0.0
    rejected: float = 0.0
    poll_fails: float = 0.0
    #: A listing is up to `stale_seconds` old.
    stale: float = 0.0
    stale_seconds: float = 0.0
    #: Ended jobs disappear from the listing before the controller has seen their end.
    forgets_early: float = 0.0
    #: The newest checkpoint is unreadable after a kill.
    torn: float = 0.0
    log_late: float = 0.0
    log_late_seconds: float = 0.0
    log_cut: float = 0.0
    #: The controller's wall clock is set to another time.
    clock_jumps: float = 0.0
    #: Per named point that the controller reaches.
    controller_dies: float = 0.0
    #: The scheduler kills a job before its time limit, without a signal.
    short_limit: float = 0.0
    cancel_fails: float = 0.0
    cancel_ignored: float = 0.0
    #: The host of a job dies when the job is cancelled: it is listed as running for ever.
    cancel_stuck: float = 0.0
    order_fails: float = 0.0
    #: Fencing, shutting or settling an attempt fails.
    files_fail: float = 0.0
    #: Per run. With `never_started`, jobs are started once at most.
    user_cancels: float = 0.0
    user_retries: float = 0.0
    refused_for_good: float = 0.0
    never_started: float = 0.0
    held_for_good: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """Everything that is drawn from a seed before the schedule starts."""

    seed: int
    trainings: tuple[TrainingModel, ...]
    spec: Spec
    weather: Weather
    patience: Patience
    #: Approximate seconds between two passes of the controller.
    interval: float
    #: Longest wait of a job in the queue, in seconds.
    queue: float
    hosts: tuple[str, ...]
    #: Hosts on which every attempt fails, with the outcome.
    bad_hosts: dict[str, Outcome]
    #: The scheduler counts a restart when it requeues the job, not when it starts it again.
    counts_returns: bool
    #: The scheduler reports evictions as such.
    reports_evictions: bool
    most_jobs: int | None
    submit_rate: int | None


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random("scenario %d" % seed)
    time = rng.uniform(150.0, 900.0)
    grace = rng.uniform(5.0, 60.0)
    weather = _weather(rng, time)
    small_total = not weather.clock_jumps and rng.random() < 0.1
    spec = Spec(
        name="simulated",
        command="train",
        resources=Resources(time=time),
        parallel=rng.choice((None, None, 1, 2, 3)),
        limits=Limits(
            attempts=rng.choice((5, 12, 20, 30, 30)),
            without_progress=rng.choice((2, 3, 3, 3, 4)),
            total=rng.uniform(6.0, 40.0) * time if small_total or weather.never_started else 14 * 86400.0,
        ),
        checkpoints=Checkpoints(grace=grace),
    )
    hosts = tuple("node%d" % number for number in range(rng.randint(1, 4)))
    failures = (
        Outcome.OUT_OF_DISK,
        Outcome.NODE_TROUBLE,
        Outcome.NETWORK,
        Outcome.STALLED,
        Outcome.CORRUPT_INPUT,
    )
    bad = hosts[1:2] if rng.random() < 0.2 else ()
    missing = rng.uniform(0.1, 0.5) * time
    scenario = Scenario(
        seed=seed,
        trainings=tuple(_training(rng, time, grace) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 5)))),
        spec=spec,
        weather=weather,
        patience=Patience(
            missing=missing,
            heartbeat=max(45.0, missing * rng.uniform(0.5, 1.5)),
            pause=rng.uniform(1.0, 30.0),
            longest_pause=0.5 * time,
            files=rng.choice((0.0, 0.0, 0.1, 0.3)) * time,
        ),
        interval=time * rng.uniform(0.08, 0.4),
        queue=time * rng.uniform(0.0, 0.6),
        hosts=hosts,
        bad_hosts={host: rng.choice(failures) for host in bad},
        counts_returns=rng.random() < 0.5,
        reports_evictions=rng.random() < 0.5,
        most_jobs=rng.choice((None, None, None, None, 1, 2, 3)),
        submit_rate=rng.choice((None, None, None, None, 1, 2, 4)),
    )
    stuck = rng.uniform(0.1, 1.0) if rng.random() < 0.1 else 0.0
    scenario = replace(scenario, weather=replace(weather, cancel_stuck=stuck))
    return _share_bug(rng, scenario) if rng.random() < 0.05 else scenario


def _share_bug(rng: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with more runs, of which most have the same bug, and few that run at once."""
    buggy = replace(scenario.trainings[0], nature=Nature.BUGGY, bug_at=1, bug_outcome=Outcome.CRASHED)
    trainings = (*(buggy,) * rng.randint(3, 6), *scenario.trainings)
    return replace(
        scenario, trainings=trainings, spec=replace(scenario.spec, parallel=rng.choice((None, 1, 2)))
    )


def _training(rng: random.Random, time: float, grace: float) -> TrainingModel:
    nature = rng.choices(tuple(Nature), (70, 15, 8, 7))[0]
    usable = 0.9 * limits_for(time, grace, 0.0, 0.0).stop_at - 15.0
    step = rng.uniform(0.005, 0.06) * usable
    # From four to twelve saves within one attempt.
    every = max(1, round(usable / step / rng.uniform(4.0, 12.0)))
    compute = usable * rng.choice((0.3, 0.8, 1.5, 2.5, 4.0)) * rng.uniform(0.7, 1.3)
    if nature is Nature.HOPELESS:
        every, compute = 0, time * rng.uniform(1.2, 3.0)
    elif rng.random() < 0.1:
        every, compute = 0, usable * rng.uniform(0.2, 0.6)
    steps = max(2, round(compute / step))
    return TrainingModel(
        nature=nature,
        steps=steps,
        step_seconds=step,
        save_every=every,
        save_seconds=rng.uniform(0.0, 0.01) * usable,
        load_seconds=rng.uniform(0.0, 0.1) * usable,
        stops_on_request=bool(every) and rng.random() < 0.7,
        reports_steps=rng.random() < 0.8,
        bug_at=rng.randint(1, steps - 1) if nature is Nature.BUGGY else None,
        bug_outcome=rng.choice((Outcome.CRASHED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY)),
        fluke_at=rng.randint(1, steps - 1) if rng.random() < 0.1 else None,
    )


def _weather(rng: random.Random, time: float) -> Weather:
    likely = rng.choice((0.0, 0.15, 0.3, 0.3, 0.6))

    def some(low: float, high: float, rarity: float = 1.0) -> float:
        return rng.uniform(low, high) if rng.random() < likely * rarity else 0.0

    return Weather(
        evicted_after=some(0.2, 1.0) ** 2 * 3 * time,
        evicted_with_notice=rng.choice((0.0, 0.5, 1.0)),
        requeued=rng.choice((0.0, 0.5, 1.0)),
        cut_off=some(0.1, 0.7),
        blind=rng.choice((0.0, 0.5, 1.0)),
        revived=some(0.05, 0.3, 0.5),
        held=some(0.05, 0.4),
        held_again=rng.choice((0.0, 0.5, 1.0)),
        held_late=some(0.1, 0.6, 0.5),
        releasable=rng.choice((0.0, 0.5, 1.0)),
        changing_reasons=some(0.1, 1.0),
        vanishes=some(0.05, 0.5),
        vanished_lives=rng.choice((0.0, 0.5, 1.0)),
        vanished_returns=rng.choice((0.0, 0.5, 1.0)),
        lost_after_accept=some(0.05, 0.3),
        unknown=some(0.05, 0.5),
        rejected=some(0.05, 0.4),
        poll_fails=some(0.05, 0.5),
        stale=some(0.05, 0.5),
        stale_seconds=rng.uniform(0.1, 0.6) * time,
        forgets_early=some(0.1, 0.8, 0.5),
        torn=some(0.1, 0.7),
        log_late=some(0.1, 0.8),
        log_late_seconds=rng.uniform(0.05, 0.8) * time,
        log_cut=some(0.05, 0.4),
        clock_jumps=some(0.02, 0.2),
        controller_dies=some(0.01, 0.05),
        short_limit=some(0.1, 0.6, 0.5),
        cancel_fails=some(0.1, 0.5),
        cancel_ignored=some(0.1, 0.5),
        order_fails=some(0.05, 0.3, 0.5),
        files_fail=some(0.05, 0.4, 0.5),
        user_cancels=some(0.1, 0.6),
        user_retries=some(0.3, 1.0, 0.5),
        refused_for_good=some(0.1, 0.5, 0.3),
        never_started=some(0.1, 0.5, 0.3),
        held_for_good=some(0.1, 0.5, 0.3),
    )
