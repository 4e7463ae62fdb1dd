"""The compute phase: run the training, send it the stop signal in time, and kill it at the deadline."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, replace
from typing import Callable

from outlast.node.process import Child, signal_name
from outlast.node.protocol import EXIT_CONTINUE, STOP_AT_LIMIT, STOP_SIGNALLED
from outlast.node.pulse import TAKEN_OVER, Pulse
from outlast.node.sandbox.committer import Committer
from outlast.node.signals import STOP_SIGNALS
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.node.snapshots.snapshot_keeper import SnapshotKeeper
from outlast.node.time_limits import TimeLimits

#: Seconds after SIGKILL until a process counts as stuck in the kernel and is left behind.
_KILL_TIMEOUT = 10.0
#: `why` in the event "stop": the job restarts in place, so that its checkpoints leave the sandbox.
TO_COMMIT = "commit"
#: The part of the grace for which the stop signal may wait until a checkpoint is written.
_SAVE_SHARE = 0.5
#: The same in seconds after a signal from outside: Slurm kills a job 30 s after it, unless configured.
_MAX_SAVE_WAIT = 15.0
#: Seconds between two checks of a snapshot that is taken before the stop signal.
_KEEPING_POLL = 0.1
#: A signal to a whole job reaches its processes one after the other, within this many seconds.
_SIGNAL_SPREAD = 1.0


@dataclass(frozen=True)
class StopSignals:
    """The stop signal for the training, and the scheduler's signal for the wall-time limit, if it has one."""

    stop: int
    limit: int | None = None


@dataclass(frozen=True)
class TrainingExit:
    """The end of the training's main process: an exit code or a signal; neither if killing it failed."""

    code: int | None
    signal: int | None
    #: Why it was stopped: STOP_AT_LIMIT, STOP_SIGNALLED, TO_COMMIT or TAKEN_OVER; None if it was not.
    stopped: str | None
    killed: bool = False
    #: True if it saved its state and exited before it was done.
    left: bool = False


@dataclass(frozen=True)
class _Stop:
    """A reason to stop the training; times are on the monotonic clock."""

    why: str
    #: The signal from outside, if that is the reason.
    received: int | None
    #: When the training gets the stop signal, even if it is writing a checkpoint.
    latest: float
    #: When it is killed.
    kill_at: float


def supervise(
    child: Child,
    limits: TimeLimits,
    stops: StopSignals,
    grace_on_signal: float,
    pulse: Pulse,
    watch: CheckpointWatch,
    commits: Committer | None = None,
    has_left: Callable[[], bool] = lambda: False,
    saves_atomically: Callable[[], bool] = lambda: False,
    keeper: SnapshotKeeper | None = None,
) -> TrainingExit:
    """Wait until the training has ended; stop or kill it when that is due, and log all this.

    After a stop signal from outside it has `grace_on_signal` seconds. `has_left` returns True if the training
    has reported that it saved and left. Unless `saves_atomically`, the stop signal waits while the checkpoint
    directory changes, and until `keeper` has a snapshot of it, for a part of the grace: it could tear a
    checkpoint that is written in place.
    """
    events = pulse.events
    stop: _Stop | None = None
    stopped: str | None = None
    killed = False
    kill_at = limits.deadline
    check_at = time.monotonic() + watch.pause
    while not child.reap():
        now = time.monotonic()
        if stop is None:
            stop = _find_stop(limits, stops, grace_on_signal, pulse, commits)
            if stop is not None:
                kill_at = stop.kill_at
                if saves_atomically():
                    stop = replace(stop, latest=now)
                else:
                    check_at = now
        if pulse.taken_over and stopped != TAKEN_OVER:
            stopped = TAKEN_OVER
            events.write("stop", why=stopped, signal=None)
            kill_at = now
        if now >= kill_at:
            if killed:
                events.warn(
                    f"process {child.pid} is stuck in the kernel and cannot be killed; it is left behind"
                )
                break
            child.send(signal.SIGKILL)
            killed = True
            kill_at = now + _KILL_TIMEOUT
        if now >= check_at:
            changed = watch.changed()
            if changed or watch.made_changed:
                events.write("changed")
            if commits is not None:
                commits.poll(changed)
            if keeper is not None:
                keeper.poll(changed or watch.made_changed, watch.quiet_at <= now, urgent=stop is not None)
            check_at = time.monotonic() + watch.pause
        if stop is not None and stopped is None:
            quiet = watch.quiet_at <= now
            if now >= stop.latest or (quiet and (keeper is None or keeper.is_settled)):
                stopped = stop.why
                events.write("stop", why=stopped, signal=stop.received)
                child.send(stops.stop)
            else:
                check_at = min(check_at, now + _KEEPING_POLL if quiet else watch.quiet_at)
        pulse.heartbeat()
        send_at = limits.stop_at if stop is None else math.inf if stopped else stop.latest
        pulse.signals.wait_until(min(kill_at, check_at, pulse.next_heartbeat, send_at))
    if stopped is None and _was_whole_job_signalled(child, pulse, limits.deadline):
        stopped = STOP_AT_LIMIT if pulse.stop_signal() == stops.limit else STOP_SIGNALLED
        events.write("stop", why=stopped, signal=pulse.stop_signal())
    if watch.changed() or watch.made_changed:
        events.write("changed")
    events.write("exit", code=child.code, signal=child.signal, **pulse.measure())
    left = child.code == EXIT_CONTINUE or (child.code != 0 and has_left())
    if commits is not None and stopped == TO_COMMIT:
        commits.note_stopped(saved=left)
    return TrainingExit(child.code, child.signal, stopped, killed, left)


def _find_stop(
    limits: TimeLimits, stops: StopSignals, grace_on_signal: float, pulse: Pulse, commits: Committer | None
) -> _Stop | None:
    """Return why the training is to be stopped now; None if it is not."""
    now = time.monotonic()
    received = pulse.stop_signal()
    if received is None and now >= limits.stop_at:
        latest = now + _SAVE_SHARE * max(0.0, limits.deadline - now)
        return _Stop(STOP_AT_LIMIT, None, latest, limits.deadline)
    kill_at = min(now + grace_on_signal, limits.deadline)
    latest = now + min(_SAVE_SHARE * max(0.0, kill_at - now), _MAX_SAVE_WAIT)
    if received is not None:
        why = STOP_AT_LIMIT if received == stops.limit else STOP_SIGNALLED
        return _Stop(why, received, latest, kill_at)
    if commits is not None and commits.wants_restart():
        return _Stop(TO_COMMIT, None, latest, kill_at)
    return None


def _was_whole_job_signalled(child: Child, pulse: Pulse, until: float) -> bool:
    """Return True if this process has a stop signal too, or gets one right after the child died of it.

    The two may arrive in any order.
    """
    number = child.signal if child.signal is not None else (child.code or 0) - 128
    until = min(until, time.monotonic() + _SIGNAL_SPREAD)
    while number in STOP_SIGNALS and pulse.stop_signal() is None and time.monotonic() < until:
        pulse.signals.wait_until(until)
    return pulse.stop_signal() is not None


def run_bounded(child: Child, pulse: Pulse) -> str | None:
    """Wait for a short program. Return None if it exited with 0 in time, else how it failed.

    Raises Interrupted if a stop signal may be the reason: then the failure proves nothing.
    """
    while not child.reap():
        pulse.heartbeat()
        until = pulse.give_up_at()
        if time.monotonic() >= until:
            child.send(signal.SIGKILL)
            if pulse.stop_signal() is not None:
                raise pulse.interruption()
            return "did not end in the time that was left"
        pulse.signals.wait_until(min(until, pulse.next_heartbeat))
    if child.code == 0:
        return None
    if _was_whole_job_signalled(child, pulse, pulse.give_up_at()):
        raise pulse.interruption()
    if child.signal is not None:
        return f"was ended by {signal_name(child.signal)}"
    return f"exited with {child.code}"
