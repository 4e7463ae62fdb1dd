"""The exchange without files: orders, claims, logs and deliveries, and what is true of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from outlast.exchange import ResultGone
from outlast.model import Attempt, Run, Spec
from outlast.observation import Report
from outlast.schedulers.base import JobRequest
from outlast.simulation.node import NodeLog
from outlast.simulation.scenario import Weather
from outlast.simulation.timeline import Timeline


@dataclass(frozen=True)
class Order:
    run: str
    number: int
    spec: Spec


@dataclass
class _Written:
    """An attempt's log, and how it reaches the controller's side of the file system."""

    log: NodeLog
    delay: float
    cut: float


class SimulatedExchange:
    """Keeps the `Exchange` protocol. `complain` is told what must never happen."""

    def __init__(
        self, timeline: Timeline, rng: random.Random, weather: Weather, complain: Callable[[str, str], None]
    ) -> None:
        self.orders: dict[str, Order] = {}
        #: The last report that the controller was given of an attempt.
        self.handed: dict[str, Report] = {}
        #: By token: how many steps are in the result that was delivered.
        self.delivered: dict[str, int] = {}
        #: By run: the attempt whose results are in their place.
        self.published: dict[str, str] = {}
        #: Attempts that the journal says have ended; nobody may begin to work on them.
        self.given_up: set[str] = set()
        self.weather = weather
        self._timeline = timeline
        self._rng = rng
        self._complain = complain
        self._claims: dict[str, str] = {}
        self._logs: dict[str, _Written] = {}

    # The node's side.

    def claim(self, token: str, job: str) -> bool:
        """The first wins, and for good: another job, or the controller's fence."""
        if self._claims.setdefault(token, job) != job:
            return False
        if token in self.given_up:
            self._complain(self.orders[token].run, "a job began to work on %s, which was given up" % token)
        return True

    def open_log(self, token: str, log: NodeLog) -> None:
        rng, weather, now = self._rng, self.weather, self._timeline.now
        delay = cut = 0.0
        if rng.random() < weather.log_late:
            delay = rng.uniform(0.0, weather.log_late_seconds)
        if rng.random() < weather.log_cut:
            cut = now + rng.uniform(0.0, self.orders[token].spec.resources.time)
        self._logs[token] = _Written(log, delay, cut or float("inf"))

    def log(self, token: str) -> NodeLog | None:
        written = self._logs.get(token)
        return written.log if written else None

    def deliver(self, token: str, steps: int) -> None:
        self.delivered[token] = steps

    # The controller's side.

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        if self._rng.random() < self.weather.order_fails:
            raise OSError(28, "No space left on device")
        self.orders[attempt.token] = Order(run.name, attempt.number, spec)

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        want = spec.resources
        return JobRequest(
            token=attempt.token,
            name="%s-%03d" % (run.name, attempt.number),
            order="",
            zipapp="",
            log="",
            cpus=want.cpus,
            gpus=want.gpus,
            memory=want.memory,
            disk=want.disk,
            time=want.time,
            grace=spec.checkpoints.grace,
            avoid=attempt.avoid,
        )

    def fence(self, attempt: Attempt) -> bool:
        return self._claims.setdefault(attempt.token, "controller") == "controller"

    def shut(self, attempt: Attempt) -> None:
        return

    def settle(self, attempt: Attempt) -> None:
        return

    def report(self, attempt: Attempt) -> Report | None:
        written = self._logs.get(attempt.token)
        if written is None:
            return None
        report = written.log.report(min(self._timeline.now - written.delay, written.cut))
        if report is None:
            # The claim is there although no line of the log has come yet.
            report = Report(heard=written.log.began + written.log.skew, host=written.log.host)
        self.handed[attempt.token] = report
        return report

    def publish(self, attempt: Attempt) -> None:
        """As with files: the delivery is moved, so that it can be moved once only."""
        run, token = attempt.run, attempt.token
        if self.published.get(run) == token:
            return
        if token not in self.delivered:
            self._complain(run, "attempt %d was accepted and had delivered nothing" % attempt.number)
            raise ResultGone("%s was accepted and has disappeared" % token)
        if run in self.published:
            self._complain(run, "results were published by %s and by %s" % (self.published[run], token))
        self.published[run] = token

    def retire(self, run: Run) -> None:
        return
