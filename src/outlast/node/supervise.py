"""The compute phase: the training runs, is told to stop in time, and is killed at the deadline."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Callable

from outlast.node.checkpoint_watch import CheckpointWatch
from outlast.node.process import Child, signal_name
from outlast.node.protocol import EXIT_CONTINUE
from outlast.node.pulse import TAKEN_OVER, Pulse
from outlast.node.sandbox.committer import Committer
from outlast.node.signals import STOP_SIGNALS

#: A process that survives SIGKILL this long hangs in the kernel; the slot's time is better used otherwise.
_UNKILLABLE = 10.0
#: Why the training is told to stop where that is how its checkpoints get out of the job.
TO_COMMIT = "commit"
#: A signal to a whole job reaches its processes one after the other, this far apart at the most.
_ONE_BY_ONE = 1.0


@dataclass(frozen=True)
class TimeLimits:
    """When an attempt must be where, on the monotonic clock. `grace` is how long saving may take."""

    hard_end: float
    deadline: float
    stop_at: float
    grace: float
    #: No step that can be cut short goes on beyond this.
    last_moment: float
    #: The deadline in seconds since the epoch, fixed once: what the training is told.
    deadline_epoch: float


def limits_for(time_limit: float, grace: float, began: float, began_epoch: float) -> TimeLimits:
    """Some of the time is kept back for validation, delivery and cleaning up, of short limits too."""
    reserve = min(30.0, 0.1 * time_limit)
    before = min(grace, 0.25 * time_limit)
    left = time_limit - reserve
    return TimeLimits(
        hard_end=began + time_limit,
        deadline=began + left,
        stop_at=began + left - before,
        grace=before,
        last_moment=began + time_limit - min(1.0, 0.3 * reserve),
        deadline_epoch=began_epoch + left,
    )


@dataclass(frozen=True)
class StopSignals:
    """The signal that tells the training to stop, and the one that tells us of the limit, if there is one."""

    told: int
    limit: int | None = None


@dataclass(frozen=True)
class TrainingExit:
    """How the training's first process ended: an exit code or a signal, neither if it would not die."""

    code: int | None
    signal: int | None
    #: Why it had been told to stop: "limit", "signal", TO_COMMIT, TAKEN_OVER, or None if it had not.
    stopped: str | None
    killed: bool = False
    #: It has saved and asks to be continued.
    left: bool = False


def supervise(
    child: Child,
    limits: TimeLimits,
    stops: StopSignals,
    grace_on_signal: float,
    pulse: Pulse,
    watch: CheckpointWatch,
    commits: Committer | None = None,
    told_of_leaving: Callable[[], bool] = lambda: False,
) -> TrainingExit:
    events = pulse.events
    stopped: str | None = None
    killed = False
    kill_at = limits.deadline
    look_at = time.monotonic() + watch.pause
    while not child.reap():
        now = time.monotonic()
        if stopped is None:
            received = pulse.stop_signal()
            if received is not None or now >= limits.stop_at:
                stopped = "limit" if received in (None, stops.limit) else "signal"
                events.write("stop", why=stopped, signal=received)
                child.send(stops.told)
                if received is not None:
                    kill_at = min(now + grace_on_signal, limits.deadline)
            elif commits is not None and commits.wants_restart():
                stopped = TO_COMMIT
                events.write("stop", why=stopped, signal=None)
                child.send(stops.told)
                kill_at = min(now + grace_on_signal, limits.deadline)
        if pulse.taken_over and stopped != TAKEN_OVER:
            stopped = TAKEN_OVER
            events.write("stop", why=stopped, signal=None)
            kill_at = now
        if now >= kill_at:
            if killed:
                events.warn(
                    f"process {child.pid} hangs in the kernel and cannot be killed; leaving it behind"
                )
                break
            child.send(signal.SIGKILL)
            killed = True
            kill_at = now + _UNKILLABLE
        if now >= look_at:
            changed = watch.changed()
            if changed:
                events.write("changed")
            if commits is not None:
                commits.look(changed)
            look_at = time.monotonic() + watch.pause
        pulse.beat()
        pulse.signals.wait_until(
            min(kill_at, look_at, pulse.next_beat, *(() if stopped else (limits.stop_at,)))
        )
    if stopped is None and _was_for_the_whole_job(child, pulse, limits.deadline):
        stopped = "limit" if pulse.stop_signal() == stops.limit else "signal"
        events.write("stop", why=stopped, signal=pulse.stop_signal())
    if watch.changed():
        events.write("changed")
    events.write("exit", code=child.code, signal=child.signal)
    left = child.code == EXIT_CONTINUE or (child.code != 0 and told_of_leaving())
    if commits is not None and stopped == TO_COMMIT:
        commits.stopped(saved=left)
    return TrainingExit(child.code, child.signal, stopped, killed, left)


def _was_for_the_whole_job(child: Child, pulse: Pulse, until: float) -> bool:
    """A stop signal is there, or comes right after it has ended the child: they may arrive in any order."""
    number = child.signal if child.signal is not None else (child.code or 0) - 128
    until = min(until, time.monotonic() + _ONE_BY_ONE)
    while number in STOP_SIGNALS and pulse.stop_signal() is None and time.monotonic() < until:
        pulse.signals.wait_until(until)
    return pulse.stop_signal() is not None


def run_bounded(child: Child, pulse: Pulse) -> str | None:
    """Wait for a short program; None if it exited 0 in time, else how it failed.

    Raises Interrupted where a stop signal may be why it failed: that says nothing about what it checks.
    """
    while not child.reap():
        pulse.beat()
        until = pulse.until()
        if time.monotonic() >= until:
            child.send(signal.SIGKILL)
            if pulse.stop_signal() is not None:
                raise pulse.interruption()
            return "did not end in the time that was left"
        pulse.signals.wait_until(min(until, pulse.next_beat))
    if child.code == 0:
        return None
    if _was_for_the_whole_job(child, pulse, pulse.until()):
        raise pulse.interruption()
    if child.signal is not None:
        return f"was ended by {signal_name(child.signal)}"
    return f"exited with {child.code}"
