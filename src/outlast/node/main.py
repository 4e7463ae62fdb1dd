"""The node program: carries out one attempt and tells by its exit code how that ended."""

from __future__ import annotations

import os
import platform
import signal
import socket
import time
import traceback
from dataclasses import asdict
from typing import Sequence

from outlast.node import claim, failure, leftovers
from outlast.node.attempt import Attempt, End
from outlast.node.events import EventLog, say
from outlast.node.order import BadOrder, WorkOrder, read_order
from outlast.node.signals import Signals
from outlast.node.supervise import limits_for
from outlast.node.words import EXIT_BAD_ORDER, EXIT_CONTINUE, EXIT_NOT_CLAIMED, Outcome, Phase

_EXIT_FAILED = 1
_EXIT_CODES = {
    Outcome.FINISHED: 0,
    Outcome.CONTINUE: EXIT_CONTINUE,
    Outcome.OVER_TIME: EXIT_CONTINUE,
    Outcome.EVICTED: EXIT_CONTINUE,
}
#: Where schedulers tell a job its id: Slurm, Grid Engine.
_JOB_VARIABLES = ("SLURM_JOB_ID", "JOB_ID")


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        say("usage: python3 outlast.pyz ORDER.json")
        return EXIT_BAD_ORDER
    job = next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), "")
    return run(argv[0], job)


def run(order_path: str, job: str = "") -> int:
    """Carry out the attempt in this process, which must be its own main thread and have no other children."""
    began, began_epoch = time.monotonic(), time.time()
    try:
        order = read_order(order_path)
        stop_signal = _signal_number(order)
    except BadOrder as error:
        say(str(error))
        return EXIT_BAD_ORDER
    host = os.environ.get("OUTLAST_HOST") or socket.gethostname()
    with Signals() as signals:
        try:
            if not claim.take(order.claim_path, order.token, job, host):
                say(_who_holds(order))
                return EXIT_NOT_CLAIMED
        except OSError as error:
            say(f"cannot claim by {order.claim_path}: {error.strerror}")
            return _EXIT_FAILED
        leftovers.become_subreaper()
        events = EventLog(order.events_path)
        events.write_at(began_epoch, began, "phase", phase=Phase.CLAIM.value)
        events.write(
            "claimed",
            token=order.token,
            host=host,
            pid=os.getpid(),
            job=job,
            python=platform.python_version(),
        )
        limits = limits_for(order.time, order.grace, began, began_epoch)
        try:
            end = Attempt(order, limits, stop_signal, signals, events).carry_out()
        except Exception as error:
            say(traceback.format_exc())
            end = _own_error(error)
        events.write("end", **{**asdict(end), "outcome": end.outcome.value})
        events.sync()
        events.close()
    return _EXIT_CODES.get(end.outcome, _EXIT_FAILED)


def _signal_number(order: WorkOrder) -> int:
    try:
        return signal.Signals[f"SIG{order.signal}"]
    except KeyError:
        raise BadOrder(f"the stop signal {order.signal!r} does not exist on this node") from None


def _who_holds(order: WorkOrder) -> str:
    holder = claim.read(order.claim_path)
    attempt = f"attempt {order.number} of {order.run}"
    if holder is not None and holder.fenced:
        return f"{attempt} was given up by {holder.by}; leaving it alone"
    if holder is not None and holder.host:
        return f"{attempt} belongs to job {holder.job} on {holder.host}; leaving it alone"
    return f"{attempt} is taken; leaving it alone"


def _own_error(error: Exception) -> End:
    """A bug of Outlast's must reach the user as one, not as a job that vanished."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)} line {place.lineno}"
    detail = f"An error in Outlast itself, not in the training: {type(error).__name__}: {error} ({where})."
    signature = failure.signature_of("outlast", type(error).__name__, where)
    return End(Outcome.CRASHED, detail, signature=signature)
