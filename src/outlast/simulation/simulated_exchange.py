"""An exchange without files: orders, claims, logs and deliveries in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from outlast.domain.model import Attempt, Run, Spec
from outlast.domain.observation import Report
from outlast.exchange.base import Publication, ResultGone
from outlast.schedulers.base import JobRequest
from outlast.simulation.scenario import Weather
from outlast.simulation.simulated_checkpoints import LegKey
from outlast.simulation.simulated_log import NodeLog
from outlast.simulation.timeline import Timeline

#: The holder of a leg that no job may claim.
FENCE = "controller"


@dataclass(frozen=True)
class Order:
    """The work order of an attempt."""

    run: str
    number: int
    spec: Spec


@dataclass
class _SimulatedLeg:
    """A start of an attempt's job, or the fence after the last one; and when its log arrives."""

    holder: str
    log: NodeLog | None = None
    delay: float = 0.0
    cut: float = float("inf")


class SimulatedExchange:
    """Implements the `Exchange` protocol. Calls `report_violation(run, text)` for what must never happen."""

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        weather: Weather,
        report_violation: Callable[[str, str], None],
    ) -> None:
        self.orders: dict[str, Order] = {}
        #: The last report on an attempt that the controller read, and when.
        self.last_reports: dict[str, Report] = {}
        self.last_report_at: dict[str, float] = {}
        #: The number of steps in the result that a leg delivered.
        self.delivered: dict[LegKey, int] = {}
        #: By run: the attempt whose results are published, and the number of steps in them.
        self.published: dict[str, tuple[str, int]] = {}
        #: Attempts that have ended according to the journal; no job may claim them.
        self.given_up: set[str] = set()
        #: Attempts whose remains were collected.
        self.settled: set[str] = set()
        #: Attempts that were ended although their files failed for too long: they may have no fence.
        self.blocked: set[str] = set()
        #: Called when a leg is claimed or fenced while the one before it may still be running.
        self.on_takeover: Callable[[str], None] = lambda token: None
        self.weather = weather
        self._timeline = timeline
        self._rng = rng
        self._report_violation = report_violation
        self._legs: dict[str, list[_SimulatedLeg]] = {}

    # The node's side.

    def claim(self, token: str, job: str) -> int:
        """Claim a leg for a job and return its number; 0 if another job or the controller has the attempt."""
        legs = self._legs.setdefault(token, [])
        if legs and legs[-1].holder != job:
            return 0
        if token in self.given_up - self.blocked:
            self._report_violation(self.orders[token].run, "a job claimed %s, which was given up" % token)
        self._add(token, job)
        return len(legs)

    def open_log(self, token: str, log: NodeLog) -> None:
        """Set the log of the leg that was claimed last, and draw when it arrives."""
        rng, weather, now = self._rng, self.weather, self._timeline.now
        leg = self._legs[token][-1]
        leg.log = log
        if rng.random() < weather.log_late:
            leg.delay = rng.uniform(0.0, weather.log_late_seconds)
        if rng.random() < weather.log_cut:
            leg.cut = now + rng.uniform(0.0, self.orders[token].spec.resources.time)

    def logs(self, token: str) -> list[NodeLog]:
        """Return the logs of all legs of an attempt that a job claimed."""
        return [leg.log for leg in self._legs.get(token, ()) if leg.log is not None]

    def arrives_within(self, token: str, seconds: float) -> bool:
        """Return True if all logs of the attempt reach the controller within `seconds`."""
        return all(leg.delay <= seconds and leg.cut == float("inf") for leg in self._legs.get(token, ()))

    def deliver(self, leg: LegKey, steps: int) -> None:
        self.delivered[leg] = steps

    # The controller's side.

    def place(self, attempt: Attempt) -> str:
        return attempt.token

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        if self._rng.random() < self.weather.order_fails:
            raise OSError(28, "No space left on device")
        self.orders[attempt.token] = Order(run.name, attempt.number, spec)

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        resources = spec.resources
        return JobRequest(
            token=attempt.token,
            name="%s-%03d" % (run.name, attempt.number),
            order="",
            zipapp="",
            log="",
            cpus=resources.cpus,
            gpus=resources.gpus,
            memory=resources.memory,
            disk=resources.disk,
            time=resources.time,
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
        for leg, log in self._visible_legs(attempt.token):
            # The claim is visible before the first line of the log.
            claimed = Report(last_logged=log.began + log.skew, host=log.host)
            reports.append(log.report(min(now - leg.delay, leg.cut)) or claimed)
        if not reports:
            return None
        *earlier, last = reports
        if earlier:
            last = replace(
                last, earlier=tuple(earlier), last_logged=max(report.last_logged for report in reports)
            )
        self.last_reports[attempt.token], self.last_report_at[attempt.token] = last, now
        return last

    def last_output(self, attempt: Attempt) -> Sequence[str]:
        return ()

    def publish(self, attempt: Attempt) -> Publication:
        """Publish what the last leg delivered, which can be moved only once. Raises ResultGone."""
        run, token = attempt.run, attempt.token
        earlier = self.published.get(run)
        if earlier and earlier[0] == token:
            return Publication()
        steps = self.delivered.get((token, sum(1 for _ in self._visible_legs(token))))
        if steps is None:
            self._report_violation(run, "attempt %d was accepted and had delivered nothing" % attempt.number)
            raise ResultGone("%s was accepted and has disappeared" % token)
        if earlier:
            self._report_violation(run, "results were published by %s and by %s" % (earlier[0], token))
        self.published[run] = token, steps
        return Publication()

    def reject(self, attempt: Attempt, reason: str) -> str:
        """Return no path: the simulation keeps no outputs that failed their checks."""
        return ""

    def retire(self, run: Run) -> None:
        return

    def _visible_legs(self, token: str) -> Iterator[tuple[_SimulatedLeg, NodeLog]]:
        """Yield the legs that the controller can see: the first at once, others when their logs arrive."""
        for number, leg in enumerate(self._legs.get(token, ())):
            if leg.log is None or (number and self._timeline.now - leg.delay < leg.log.began):
                return
            yield leg, leg.log

    def _add(self, token: str, holder: str) -> None:
        self._legs.setdefault(token, []).append(_SimulatedLeg(holder))
        self.on_takeover(token)

    def _may_fail(self) -> None:
        if self._rng.random() < self.weather.files_fail:
            raise OSError(5, "Input/output error")
