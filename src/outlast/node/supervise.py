"""The compute phase: the training runs, is told to stop in time, and is killed at the deadline."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from outlast.node.events import EventLog
from outlast.node.process import Child, signal_name
from outlast.node.signals import Signals
from outlast.node.watch import Watch

_BEAT = 15.0
#: A process that survives SIGKILL this long hangs in the kernel; the slot's time is better used otherwise.
_UNKILLABLE = 10.0


@dataclass(frozen=True)
class Limits:
    """When an attempt must be where, on the monotonic clock. `grace` is how long saving may take."""

    hard_end: float
    deadline: float
    stop_at: float
    grace: float
    #: No step that can be cut short goes on beyond this.
    last_moment: float
    #: The deadline in seconds since the epoch, fixed once: what the training is told.
    deadline_epoch: float


def limits_for(time_limit: float, grace: float, began: float, began_epoch: float) -> Limits:
    """Some of the time is kept back for validation, delivery and cleaning up, of short limits too."""
    reserve = min(30.0, 0.1 * time_limit)
    before = min(grace, 0.25 * time_limit)
    left = time_limit - reserve
    return Limits(
        hard_end=began + time_limit,
        deadline=began + left,
        stop_at=began + left - before,
        grace=before,
        last_moment=began + time_limit - min(1.0, 0.3 * reserve),
        deadline_epoch=began_epoch + left,
    )


@dataclass(frozen=True)
class Ended:
    """How the training's first process ended: an exit code or a signal, neither if it would not die."""

    code: int | None
    signal: int | None
    #: Why it had been told to stop: "limit", "signal", or None if it had not.
    stopped: str | None
    killed: bool = False


def supervise(
    child: Child,
    limits: Limits,
    stop_signal: int,
    grace_on_signal: float,
    signals: Signals,
    events: EventLog,
    watch: Watch,
) -> Ended:
    stopped: str | None = None
    killed = False
    kill_at = limits.deadline
    now = time.monotonic()
    look_at, beat_at = now + watch.pause, now + _BEAT
    while not child.reap():
        now = time.monotonic()
        if stopped is None:
            received = signals.pending_stop()
            if received is not None or now >= limits.stop_at:
                stopped = "limit" if received is None else "signal"
                events.write("stop", why=stopped, signal=received)
                child.send(stop_signal)
                if received is not None:
                    kill_at = min(now + grace_on_signal, limits.deadline)
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
            if watch.changed():
                events.write("changed")
            look_at = time.monotonic() + watch.pause
        if now >= beat_at:
            events.write("beat")
            beat_at = now + _BEAT
        signals.wait_until(min(kill_at, look_at, beat_at, *(() if stopped else (limits.stop_at,))))
    if watch.changed():
        events.write("changed")
    events.write("exit", code=child.code, signal=child.signal)
    return Ended(child.code, child.signal, stopped, killed)


def run_bounded(child: Child, until: float, signals: Signals) -> str | None:
    """Wait for a short program; None if it exited 0 in time, else how it failed."""
    while not child.reap():
        if time.monotonic() >= until:
            child.send(signal.SIGKILL)
            return "did not end in the time that was left"
        signals.wait_until(until)
    if child.signal is not None:
        return f"was ended by {signal_name(child.signal)}"
    return None if child.code == 0 else f"exited with {child.code}"
