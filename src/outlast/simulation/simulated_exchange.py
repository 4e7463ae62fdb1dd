"""The exchange without files: orders, claims, logs and deliveries, and what is true of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from outlast.domain.model import Attempt, Run, Spec
from outlast.domain.observation import Report
from outlast.exchange.base import ResultGone
from outlast.schedulers.base import JobRequest
from outlast.simulation.scenario import Weather
from outlast.simulation.simulated_checkpoints import LegKey
from outlast.simulation.simulated_log import NodeLog
from outlast.simulation.timeline import Timeline

#: Who holds a leg that nobody may work on.
FENCE = "controller"


@dataclass(frozen=True)
class Order:
    run: str
    number: int
    spec: Spec


@dataclass
class _SimulatedLeg:
    """One start of an attempt's job, or the fence after the last one, and how its log travels."""

    holder: str
    log: NodeLog | None = None
    delay: float = 0.0
    cut: float = float("inf")


class SimulatedExchange:
    """Keeps the `Exchange` protocol. `complain` is told what must never happen."""

    def __init__(
        self, timeline: Timeline, rng: random.Random, weather: Weather, complain: Callable[[str, str], None]
    ) -> None:
        self.orders: dict[str, Order] = {}
        #: The last report that the controller was given of an attempt, and when.
        self.handed: dict[str, Report] = {}
        self.handed_at: dict[str, float] = {}
        #: How many steps are in the result that a leg delivered.
        self.delivered: dict[LegKey, int] = {}
        #: By run: the attempt whose results are in their place, and how many steps are in them.
        self.published: dict[str, tuple[str, int]] = {}
        #: Attempts that the journal says have ended; nobody may begin to work on them.
        self.given_up: set[str] = set()
        #: Attempts whose leavings were brought home.
        self.settled: set[str] = set()
        #: Told when a leg was claimed or fenced while the one before it may still be at work.
        self.taken_over: Callable[[str], None] = lambda token: None
        self.weather = weather
        self._timeline = timeline
        self._rng = rng
        self._complain = complain
        self._legs: dict[str, list[_SimulatedLeg]] = {}

    # The node's side.

    def claim(self, token: str, job: str) -> int:
        """The number of the leg that is now the job's; 0: another job has the attempt, or the controller."""
        legs = self._legs.setdefault(token, [])
        if legs and legs[-1].holder != job:
            return 0
        if token in self.given_up:
            self._complain(self.orders[token].run, "a job began to work on %s, which was given up" % token)
        self._add(token, job)
        return len(legs)

    def open_log(self, token: str, log: NodeLog) -> None:
        """The log of the leg that was claimed last."""
        rng, weather, now = self._rng, self.weather, self._timeline.now
        leg = self._legs[token][-1]
        leg.log = log
        if rng.random() < weather.log_late:
            leg.delay = rng.uniform(0.0, weather.log_late_seconds)
        if rng.random() < weather.log_cut:
            leg.cut = now + rng.uniform(0.0, self.orders[token].spec.resources.time)

    def logs(self, token: str) -> list[NodeLog]:
        """Of all legs of an attempt that were worked on."""
        return [leg.log for leg in self._legs.get(token, ()) if leg.log is not None]

    def arrives_within(self, token: str, seconds: float) -> bool:
        """Everything that was logged of the attempt reaches the controller in that time."""
        return all(leg.delay <= seconds and leg.cut == float("inf") for leg in self._legs.get(token, ()))

    def deliver(self, leg: LegKey, steps: int) -> None:
        self.delivered[leg] = steps

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
        self._may_fail()
        if not self._legs.get(attempt.token):
            self._add(attempt.token, FENCE)
        return self._legs[attempt.token][0].holder == FENCE

    def shut(self, attempt: Attempt) -> None:
        self._may_fail()
        legs = self._legs.get(attempt.token)
        if not legs or legs[-1].holder != FENCE:
            self._add(attempt.token, FENCE)

    def settle(self, attempt: Attempt) -> None:
        self._may_fail()
        self.settled.add(attempt.token)

    def report(self, attempt: Attempt) -> Report | None:
        now = self._timeline.now
        reports: list[Report] = []
        for leg, log in self._arrived(attempt.token):
            # The claim is there although no line of the log has come yet.
            claimed = Report(heard=log.began + log.skew, host=log.host)
            reports.append(log.report(min(now - leg.delay, leg.cut)) or claimed)
        if not reports:
            return None
        *earlier, last = reports
        if earlier:
            last = replace(last, earlier=tuple(earlier), heard=max(report.heard for report in reports))
        self.handed[attempt.token], self.handed_at[attempt.token] = last, now
        return last

    def publish(self, attempt: Attempt) -> None:
        """As with files: what the last leg delivered is moved, so that it can be moved once only."""
        run, token = attempt.run, attempt.token
        known = self.published.get(run)
        if known and known[0] == token:
            return
        steps = self.delivered.get((token, sum(1 for _ in self._arrived(token))))
        if steps is None:
            self._complain(run, "attempt %d was accepted and had delivered nothing" % attempt.number)
            raise ResultGone("%s was accepted and has disappeared" % token)
        if known:
            self._complain(run, "results were published by %s and by %s" % (known[0], token))
        self.published[run] = token, steps

    def retire(self, run: Run) -> None:
        return

    def _arrived(self, token: str) -> Iterator[tuple[_SimulatedLeg, NodeLog]]:
        """The legs that the controller can see: the first at once, later ones when their logs come."""
        for number, leg in enumerate(self._legs.get(token, ())):
            if leg.log is None or (number and self._timeline.now - leg.delay < leg.log.began):
                return
            yield leg, leg.log

    def _add(self, token: str, holder: str) -> None:
        self._legs.setdefault(token, []).append(_SimulatedLeg(holder))
        self.taken_over(token)

    def _may_fail(self) -> None:
        if self._rng.random() < self.weather.files_fail:
            raise OSError(5, "Input/output error")
