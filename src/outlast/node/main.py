"""The node program: carries out one attempt and tells by its exit code how that ended."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import socket
import subprocess
import time
import traceback
from dataclasses import asdict
from typing import Sequence

from outlast.node import failure, legs, process_cleanup, time_limits
from outlast.node.attempt import AttemptResult, AttemptRunner
from outlast.node.event_log import EventLog, print_stderr
from outlast.node.order import BadOrder, WorkOrder, read_order
from outlast.node.protocol import EXIT_BAD_ORDER, EXIT_CONTINUE, EXIT_NOT_CLAIMED, Outcome, Phase
from outlast.node.sandbox import layout
from outlast.node.sandbox.committer import Committer
from outlast.node.scratch import Scratch
from outlast.node.signals import Signals
from outlast.node.supervise import StopSignals, limits_for

_EXIT_FAILED = 1
_EXIT_CODES = {
    Outcome.FINISHED: 0,
    Outcome.CONTINUE: EXIT_CONTINUE,
    Outcome.OVER_TIME: EXIT_CONTINUE,
    Outcome.EVICTED: EXIT_CONTINUE,
}
#: Seconds that cancelling the rest of a chain may take.
_CANCELLING = 30.0


def main(argv: Sequence[str]) -> int:
    if argv and argv[0].startswith("-"):
        from outlast.node.staging import condor_plugin

        if condor_plugin.is_plugin_call(argv):
            return condor_plugin.main(argv)
    if len(argv) != 1:
        print_stderr("usage: python3 outlast.pyz ORDER.json")
        return EXIT_BAD_ORDER
    return run(argv[0], os.environ.get("OUTLAST_JOB", ""))


def run(order_path: str, job: str = "") -> int:
    """Carry out the attempt in this process, which must be its own main thread and have no other children."""
    began, began_epoch = time.monotonic(), time.time()
    try:
        order = read_order(order_path)
        stop_signal = _signal_number(order.signal)
        limit_signal = _signal_number(order.limit_signal) if order.limit_signal else None
    except BadOrder as error:
        print_stderr(str(error))
        return EXIT_BAD_ORDER
    host = os.environ.get("OUTLAST_HOST") or socket.gethostname()
    with Signals() as signals:
        try:
            came_from = layout.restore_newest(order.home) if order.sandbox else None
            order, leg = legs.claim_next(order, job, host)
        except legs.NotClaimed as why:
            print_stderr(f"attempt {order.number} of {order.run} {why}; leaving it alone")
            return EXIT_NOT_CLAIMED
        except OSError as error:
            print_stderr(f"cannot claim in {order.exchange}: {error.strerror}")
            return _EXIT_FAILED
        process_cleanup.become_subreaper()
        for token in legs.earlier_tokens(order, leg):
            process_cleanup.kill_by_token(token)
        events = EventLog(leg.events_path)
        _ring(order.bell)
        events.write_at(began_epoch, began, "phase", phase=Phase.CLAIM.value)
        events.write(
            "claimed",
            token=order.token,
            host=host,
            pid=os.getpid(),
            job=job,
            leg=leg.number,
            python=platform.python_version(),
        )
        allotted = time_limits.seconds_left(order.time, os.environ)
        limits = limits_for(allotted, order.grace, began, began_epoch)
        stops = StopSignals(stop_signal, limit_signal)
        commits = None
        try:
            if order.sandbox:
                commits = Committer(order, leg, events, Scratch(order.scratch).output, came_from, os.environ)
            end = AttemptRunner(order, leg, limits, stops, signals, events, commits).carry_out()
        except Exception as error:
            print_stderr(traceback.format_exc())
            end = _own_error(error)
        if order.sandbox:
            _pack(order, events)
        events.write("end", **{**asdict(end), "outcome": end.outcome.value})
        events.sync()
        events.close()
        _ring(order.bell)
        chained = order.jobs > 1
        over = end.outcome is Outcome.FINISHED or (chained and bool(legs.nothing_left(order, leg)))
        if over and chained:
            _cancel_the_rest(os.environ.get("OUTLAST_CANCEL_REST", ""))
    if order.sandbox:
        # There the code for going on means: take what I have with me and start me again in this place.
        goes_on = not over and leg.number < order.jobs
        return EXIT_CONTINUE if goes_on or (commits is not None and commits.restarts) else 0
    return _EXIT_CODES.get(end.outcome, _EXIT_FAILED)


def _pack(order: WorkOrder, events: EventLog) -> None:
    try:
        layout.pack(order.home)
    except OSError as error:
        events.warn(f"what goes back cannot be listed ({error}); only whole checkpoints will count")


def _ring(bell: str | None) -> None:
    if bell is None:
        return
    try:
        with open(bell, "ab"):
            os.utime(bell)
    except OSError as error:
        print_stderr(f"cannot ring {bell}: {error.strerror}; the controller will notice later")


def _signal_number(name: str) -> int:
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        raise BadOrder(f"the stop signal {name!r} does not exist on this node") from None


def _cancel_the_rest(command: str) -> None:
    """The other jobs of the chain have nothing left to do. If they cannot be cancelled they end at once."""
    if not command:
        return
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_CANCELLING,
            check=False,
        )
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != 0:
            print_stderr(f"the rest of the chain could not be cancelled from here: {said or done.returncode}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print_stderr(f"the rest of the chain could not be cancelled from here: {error}")


def _own_error(error: Exception) -> AttemptResult:
    """A bug of Outlast's must reach the user as one, not as a job that vanished."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)} line {place.lineno}"
    detail = f"An error in Outlast itself, not in the training: {type(error).__name__}: {error} ({where})."
    signature = failure.signature_of("outlast", type(error).__name__, where)
    return AttemptResult(Outcome.CRASHED, detail, signature=signature)
