"""The node program: runs one attempt; its event log shows how the attempt ended."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import socket
import subprocess
import time
import traceback
from dataclasses import asdict, replace
from typing import Sequence

from outlast.node import legs, process_cleanup, time_limits
from outlast.node.attempt import AttemptRunner
from outlast.node.attempt_result import AttemptResult
from outlast.node.diagnosis import failure
from outlast.node.event_log import EventLog, print_stderr
from outlast.node.order import BadOrder, WorkOrder, read_order
from outlast.node.outputs.delivery import to_log
from outlast.node.protocol import EXIT_BAD_ORDER, EXIT_CONTINUE, EXIT_NOT_CLAIMED, Outcome, Phase
from outlast.node.sandbox import layout
from outlast.node.sandbox.committer import Committer
from outlast.node.scratch import Scratch
from outlast.node.signals import Signals
from outlast.node.supervise import StopSignals
from outlast.untrusted_files import open_to_append

_EXIT_FAILED = 1
#: Outcomes that are no failure: the scheduler's accounting and mail must not show them as one. Which of them
#: it was is in the event log, and nothing is concluded from this exit code.
_EXITS_WITH_0 = (Outcome.FINISHED, Outcome.CONTINUE, Outcome.OVER_TIME, Outcome.EVICTED)
#: How much of the reason for the end is logged, in characters.
_LONGEST_DETAIL = 4000
#: Timeout in seconds for cancelling the rest of a chain.
_CANCEL_TIMEOUT = 30.0


def main(argv: Sequence[str]) -> int:
    """Run the work order named in `argv`, or act as a transfer plugin of HTCondor. Return the exit code."""
    if argv and argv[0].startswith("-"):
        from outlast.node.staging import condor_plugin

        if condor_plugin.is_plugin_call(argv):
            return condor_plugin.main(argv)
    if len(argv) != 1:
        print_stderr("usage: python3 outlast.pyz ORDER.json")
        return EXIT_BAD_ORDER
    return run(argv[0], os.environ.get("OUTLAST_JOB", ""))


def run(order_path: str, job: str = "") -> int:
    """Run the attempt and return the exit code. Call it in the main thread of a process without children."""
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
            restored = layout.restore_newest(order.home) if order.sandbox else None
            order, leg = legs.claim_next(order, job, host)
        except legs.NotClaimed as reason:
            print_stderr(f"attempt {order.number} of {order.run} {reason}; leaving it alone")
            return EXIT_NOT_CLAIMED
        except OSError as error:
            print_stderr(f"cannot claim in {order.exchange}: {error.strerror}")
            return _EXIT_FAILED
        process_cleanup.become_subreaper()
        for token in legs.earlier_tokens(order, leg):
            process_cleanup.kill_by_token(token)
        events = EventLog(leg.events_path)
        _touch_bell(order.bell)
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
        time_limit = time_limits.seconds_left(order.time, os.environ)
        limits = time_limits.limits_for(time_limit, order.grace, began, began_epoch)
        stops = StopSignals(stop_signal, limit_signal)
        commits = None
        try:
            if order.sandbox:
                commits = Committer(order, leg, events, Scratch(order.scratch).output, restored, os.environ)
            end = AttemptRunner(order, leg, limits, stops, signals, events, commits).run()
        except Exception as error:
            print_stderr(traceback.format_exc())
            end = _internal_error(error)
        if order.sandbox:
            _pack(order, events)
        events.write("end", **_fields(end))
        events.sync()
        events.close()
        _touch_bell(order.bell)
        chained = order.jobs > 1
        over = end.outcome is Outcome.FINISHED or (chained and bool(legs.why_chain_is_over(order, leg)))
        if over and chained:
            _cancel_rest_of_chain(os.environ.get("OUTLAST_CANCEL_REST", ""))
    if order.sandbox:
        # In a sandbox EXIT_CONTINUE makes HTCondor transfer `travel` and start the job again in place.
        continues = not over and leg.number < order.jobs
        return EXIT_CONTINUE if continues or (commits is not None and commits.restarts) else 0
    return 0 if end.outcome in _EXITS_WITH_0 else _EXIT_FAILED


def _fields(end: AttemptResult) -> dict[str, object]:
    """Return the fields of the event log's last line."""
    delivery = {} if end.delivered is None else to_log(end.delivered)
    detail = end.detail[:_LONGEST_DETAIL]
    return {**asdict(replace(end, delivered=None, detail=detail)), "outcome": end.outcome.value, **delivery}


def _pack(order: WorkOrder, events: EventLog) -> None:
    try:
        layout.pack(order.home)
    except OSError as error:
        events.warn(f"cannot list the files to transfer back ({error}); only whole checkpoints will count")


def _touch_bell(bell: str | None) -> None:
    """Wake a controller that waits for a change of the file `bell`."""
    if bell is None:
        return
    try:
        descriptor = open_to_append(bell)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        print_stderr(f"cannot touch {bell}: {error.strerror}; the controller will notice the change later")


def _signal_number(name: str) -> int:
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        raise BadOrder(f"the stop signal {name!r} does not exist on this node") from None


def _cancel_rest_of_chain(command: str) -> None:
    """Cancel the other jobs of the chain, which have nothing left to do. If that fails, they exit at once."""
    if not command:
        return
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_CANCEL_TIMEOUT,
            check=False,
        )
        message = done.stderr.decode(errors="replace").strip()
        if done.returncode != 0:
            print_stderr(
                f"the rest of the chain could not be cancelled from here: {message or done.returncode}"
            )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print_stderr(f"the rest of the chain could not be cancelled from here: {error}")


def _internal_error(error: Exception) -> AttemptResult:
    """Return the end for a bug in Outlast, so that the user sees the bug and not a job that vanished."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)} line {place.lineno}"
    detail = f"An error in Outlast itself, not in the training: {type(error).__name__}: {error} ({where})."
    signature = failure.signature_of("outlast", type(error).__name__, where)
    return AttemptResult(Outcome.CRASHED, detail, signature=signature)
