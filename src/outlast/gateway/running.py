"""A gateway at work: `run_up` until it is stopped or drained, `run_tick` once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from outlast.controller.supervisor import control
from outlast.errors import OutlastError
from outlast.gateway.assembly import CAREFUL_MESSAGES, Gateway, assemble
from outlast.gateway.broker.link_health import LinkHealth, QueueHealth, QueueState
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.lock import hold_lock
from outlast.gateway.monitoring.audit import Listener
from outlast.gateway.monitoring.health import HealthServer
from outlast.gateway.monitoring.heartbeat import Heartbeat, write_heartbeat
from outlast.gateway.monitoring.state_view import StateView
from outlast.gateway.record.record import Record
from outlast.gateway.record.record_file import RecordLocked, RecordUnavailable
from outlast.gateway.requests import RequestState
from outlast.gateway.supervision import ExperimentSupervision
from outlast.text import counted

#: Seconds between two heartbeats, and the longest wait of a step.
HEARTBEAT = 2.0
STEP = 0.5
#: Seconds between two tries to write a record that cannot be written: doubled each time.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
#: Errors of the record that pass.
RECORD_OUTAGES = (RecordUnavailable, RecordLocked)
THE_RECORD, THE_AUDIT_LOG = "the record", "the audit log"
#: Seconds for which a gateway that stops waits for the broker's confirms.
LAST_CONFIRMS = 5.0
#: A tick: seconds to be connected, without news to be done, for one pass over an experiment, and in all.
TICK_CONNECT, TICK_QUIET, TICK_PASS, TICK_MOST = 15.0, 1.0, 5.0, 45.0
#: Timeout of one call of a scheduler in a tick.
TICK_CALL = 20.0

Print = Callable[[str, str], None]


@dataclass(frozen=True)
class Ticked:
    """What a tick has seen and done."""

    messages: int
    submitted: int
    sent: int
    connected: bool
    reason: str
    troubles: dict[str, str]


def run_up(directory: GatewayDirectory, show: Print, listener: Listener) -> bool:
    """Serve until SIGTERM or SIGINT, or until a drained gateway has nothing left; return True if drained.

    `show` is called with a subject and a sentence whenever something changes that people should know,
    `listener` with each decision about a request.
    """
    stop = threading.Event()
    # From the beginning: a gateway that is stopped while it starts says so, too.
    with _signals(stop.set), hold_lock(directory):
        prefetch = 1 if _has_crashed(directory) else None
        view = StateView(time.time())

        def count_and_show(event: str, facts: Mapping[str, object]) -> None:
            view.count(event, facts)
            listener(event, facts)

        gateway = assemble(directory, prefetch=prefetch, listener=count_and_show)
        try:
            gateway.record.set_about("running", "yes")
            drained = _Loop(gateway, show, view, stop).run()
            gateway.record.set_about("running", "")
            return drained
        finally:
            gateway.close()


def _has_crashed(directory: GatewayDirectory) -> bool:
    """Return True if the last `up` did not stop by itself: a message may have killed it."""
    if not directory.record.exists():
        return False
    record = Record(directory.record)
    try:
        return record.about("running") == "yes"
    finally:
        record.close()


class _Loop:
    """Repeats the service's step, with the experiments' supervision beside it."""

    def __init__(self, gateway: Gateway, show: Print, view: StateView, stop: threading.Event) -> None:
        self._gateway = gateway
        self._show = show
        self._stop = stop
        self._supervisions = {
            name: ExperimentSupervision(runs.experiment, gateway.link.wake)
            for name, runs in gateway.runs.items()
        }
        self._started = time.time()
        self._beaten = float("-inf")
        self._draining = False
        #: Why the record cannot be read or written; empty: it can.
        self._unrecorded = ""
        #: What was shown last, by subject.
        self._shown: dict[str, str] = {}
        self._careful = 0
        self._pause = FIRST_PAUSE
        self._passes = self._messages = 0
        self._longest_pass = 0.0
        self._view = view
        self._health = HealthServer(
            gateway.directory.health_socket,
            gateway.settings.metrics_port,
            gateway.settings.metrics_token,
            view.snapshot,
        )

    def run(self) -> bool:
        """Serve until stopped, or drained; return True in that case."""
        link = self._gateway.link
        self._health.start()
        link.start()
        for supervision in self._supervisions.values():
            supervision.start()
        drained = False
        try:
            while not self._stop.is_set() and not drained:
                drained = self._step()
        finally:
            self._finish()
        return drained

    def _step(self) -> bool:
        gateway = self._gateway
        try:
            self._draining = gateway.record.about("drain") == "yes"
            began = time.monotonic()
            done = gateway.service.step(STEP, take=not self._draining)
            self._passes += 1
            self._messages += done.messages
            self._longest_pass = max(self._longest_pass, time.monotonic() - began)
            self._be_less_careful(done.interpreted)
            if time.monotonic() - self._beaten >= HEARTBEAT:
                self._beat()
                self._view_state(gateway.record)
            drained = self._draining and not done.anything and self._is_drained()
        except RECORD_OUTAGES as error:
            self._wait_for_record(error)
            return False
        self._unrecorded, self._pause = "", FIRST_PAUSE
        return drained

    def _wait_for_record(self, error: OutlastError) -> None:
        """Say why the record cannot be written, and wait for a moment."""
        self._unrecorded = "%s; nothing is acknowledged meanwhile" % error
        self._beat()
        self._view_state(None)
        self._stop.wait(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _is_drained(self) -> bool:
        waiting, _ = self._gateway.record.waiting_answers()
        open_states = (RequestState.ACCEPTED, RequestState.RUNNING, RequestState.ENDED, RequestState.REFUSED)
        has_open = next(self._gateway.record.requests(open_states, most=1), None) is not None
        return not waiting and not has_open and self._gateway.service.idle

    def _be_less_careful(self, interpreted: int) -> None:
        """After a crash, messages are taken one by one, until some were interpreted without another."""
        self._careful += interpreted
        if self._careful >= CAREFUL_MESSAGES:
            self._gateway.link.set_prefetch(None)

    def _troubles(self) -> dict[str, str]:
        """Return what is wrong besides the broker: by template, or with something that all of them need."""
        found = {name: supervision.state.trouble for name, supervision in self._supervisions.items()}
        found.update(self._gateway.service.trouble)
        # With a space, these are the names of no templates.
        found[THE_RECORD] = self._unrecorded
        found[THE_AUDIT_LOG] = self._gateway.audit.trouble
        return found

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        health = self._gateway.link.health
        for name, text in self._troubles().items():
            self._say(name, text)
        self._say("broker", describe_link(health))
        for queue in health.queues:
            waits = queue.state in (QueueState.CONSUMED, QueueState.WAITING)
            self._say("queue %s" % queue.name, "" if waits else describe_queue(queue))
        heartbeat = Heartbeat(
            pid=os.getpid(),
            host=os.uname().nodename,
            started=self._started,
            at=time.time(),
            connected_since=health.connected_since,
            down_since=health.down_since,
            reason=health.trouble,
            broker="RabbitMQ %s" % health.version if health.version else "",
            queues={queue.name: describe_queue(queue) for queue in health.queues},
            troubles={name: text for name, text in self._troubles().items() if text},
            draining=self._draining,
        )
        with suppress(OSError):  # the health check says what is wrong, and status shows the old heartbeat
            write_heartbeat(self._gateway.directory.heartbeat, heartbeat)

    def _view_state(self, record: Record | None) -> None:
        self._view.update(
            record,
            self._gateway.link.health,
            {name: text for name, text in self._troubles().items() if text},
            messages=self._messages,
            passes=self._passes,
            pass_seconds=self._longest_pass,
            draining=self._draining,
        )
        self._longest_pass = 0.0

    def _say(self, subject: str, text: str) -> None:
        """Show a sentence when it is new, and that all is well again when it was not."""
        before = self._shown.get(subject, "")
        if text != before:
            self._shown[subject] = text
            self._show(subject, text or "all is well again")

    def _finish(self) -> None:
        """Stop: what was handed to the broker may still be confirmed, and passes end."""
        for supervision in self._supervisions.values():
            supervision.stop()
        until = time.monotonic() + LAST_CONFIRMS
        with suppress(OutlastError):  # what is not recorded is sent again by the next gateway
            while self._gateway.service.has_unconfirmed and time.monotonic() < until:
                self._gateway.service.settle(0.2)
        self._gateway.link.stop(LAST_CONFIRMS)
        self._health.stop()
        for supervision in self._supervisions.values():
            supervision.join()
        with suppress(OSError):
            self._gateway.directory.heartbeat.unlink(missing_ok=True)


def run_tick(directory: GatewayDirectory) -> Ticked:
    """Take what waits, make one pass over each experiment, send what is due; takes less than a minute."""
    answered = 0

    def count_answers(event: str, _: Mapping[str, object]) -> None:
        nonlocal answered
        answered += event == "answered"

    with hold_lock(directory):
        prefetch = 1 if _has_crashed(directory) else None
        gateway = assemble(directory, prefetch=prefetch, listener=count_answers)
        try:
            gateway.record.set_about("running", "yes")
            ticked = _tick(gateway)
            gateway.record.set_about("running", "")
        finally:
            gateway.close()
    return replace(ticked, sent=answered)


def _tick(gateway: Gateway) -> Ticked:
    end = time.monotonic() + TICK_MOST
    link, service = gateway.link, gateway.service
    link.start()
    counts = [0, 0]
    troubles: dict[str, str] = {}
    try:
        connect_end = time.monotonic() + TICK_CONNECT
        while not link.health.connected_since and time.monotonic() < connect_end:
            link.wait(0.2)
        connected, reason = bool(link.health.connected_since), link.health.reason
        take = gateway.record.about("drain") != "yes"
        _serve(gateway, counts, end, take)
        for name, runs in gateway.runs.items():
            try:
                with control(runs.experiment, "gateway tick", timeout=TICK_CALL) as supervisor:
                    done = supervisor.step(budget=TICK_PASS)
                    if done.scheduler_error:
                        troubles[name] = "the scheduler does not respond: %s" % done.scheduler_error
            except (OutlastError, OSError) as error:  # the others go on
                troubles[name] = str(error)
        _serve(gateway, counts, end, take)
    finally:
        link.stop(LAST_CONFIRMS)
    troubles.update(service.trouble)
    return Ticked(counts[0], counts[1], 0, connected, reason, troubles)


def _serve(gateway: Gateway, counts: list[int], end: float, take: bool) -> None:
    """Repeat the service's step until nothing is left to do."""
    quiet = time.monotonic()
    while time.monotonic() < end:
        done = gateway.service.step(0.2, take=take)
        counts[0] += done.messages
        counts[1] += done.submitted
        if done.anything or not gateway.service.idle:
            quiet = time.monotonic()
        elif time.monotonic() - quiet >= TICK_QUIET:
            return


def describe_link(health: LinkHealth) -> str:
    """Return what is wrong with the connection to the broker; empty if nothing is."""
    if health.connected_since is None:
        return "not connected: %s" % (health.reason or "not yet")
    return "it takes no answers now: %s" % health.blocked if health.blocked else health.progress


def describe_queue(queue: QueueHealth) -> str:
    """Return the state of a queue, and why it is so."""
    return "%s: %s" % (queue.state.value, queue.reason) if queue.reason else queue.state.value


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for SIGTERM and SIGINT, and restore the handlers that were there."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe_ticked(ticked: Ticked) -> str:
    """Return a tick in one line."""
    state = "" if ticked.connected else "; not connected to the broker: %s" % (ticked.reason or "no answer")
    return "%s taken, %s submitted, %s sent%s" % (
        counted(ticked.messages, "message"),
        counted(ticked.submitted, "run"),
        counted(ticked.sent, "answer"),
        state,
    )
