"""Requests by the hundred, while the broker, the gateway and jobs are killed at random.

`make test` sends a few; `make storm` sends 1,000 (OUTLAST_GATEWAY_STORM). The end of the test output has the
seed and the counts. `OUTLAST_GATEWAY_SEED` repeats the choices of a walk, but not its moments.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from support.broker import PrivateBroker, private_broker, until
from support.gateway_application import Application
from support.gateway_lab import GatewayLab, gateway_lab

REQUESTS = int(os.environ.get("OUTLAST_GATEWAY_STORM", "30"))
#: What is done, and how often: in `make test`, and in a storm of a thousand requests.
SMALL = {"kill broker": 1, "kill gateway": 2, "stop gateway": 1, "kill job": 3}
LARGE = {"kill broker": 5, "restart broker": 5, "kill gateway": 10, "stop gateway": 2, "kill job": 60}
#: The most requests under way before the next act, and the most seconds for these to become fewer.
MOST_OPEN = 100
PATIENCE = 300.0


@dataclass
class Storm:
    """A random walk: requests in portions, with an act after each."""

    lab: GatewayLab
    broker: PrivateBroker
    application: Application
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    killed: set[str] = field(default_factory=set)

    def walk(self, acts: dict[str, int], requests: int) -> dict[str, int]:
        """Send requests and perform the acts in a random order; return the numbers of the requests."""
        self.process = self.lab.up()
        order = [act for act, times in acts.items() for _ in range(times)]
        self.chance.shuffle(order)
        numbers: dict[str, int] = {}
        for index, act in enumerate(order):
            while len(numbers) < requests * (index + 1) // len(order):
                number = len(numbers)
                numbers["id-%d" % number] = number
                self.application.request(
                    "id-%d" % number, number=number, seconds=round(self.chance.uniform(0, 3), 2)
                )
            until(lambda: len(self.application.unanswered) < MOST_OPEN, self.lab.log, PATIENCE)
            # Each act comes at a moment that nothing has prepared.
            self.lab.pause(self.chance.uniform(0, 2))
            self.acts[act]()
        return numbers

    @property
    def acts(self) -> dict[str, Callable[[], None]]:
        return {
            "kill broker": self.kill_broker,
            "restart broker": self.restart_broker,
            "kill gateway": self.kill_gateway,
            "stop gateway": self.stop_gateway,
            "kill job": self.kill_job,
        }

    def kill_broker(self) -> None:
        self.broker.kill()
        self.counts["brokers killed"] += 1
        self.lab.pause(self.chance.uniform(0, 2))
        self.broker.start()

    def restart_broker(self) -> None:
        self.broker.stop()
        self.counts["brokers restarted"] += 1
        self.broker.start()

    def kill_gateway(self) -> None:
        self.lab.kill(self.process)
        self.counts["gateways killed"] += 1
        self.lab.pause(self.chance.uniform(0, 1))
        self.process = self.lab.up()

    def stop_gateway(self) -> None:
        self.lab.stop(self.process)
        self.counts["gateways stopped"] += 1
        self.process = self.lab.up()

    def kill_job(self) -> None:
        """Kill a job whose run has lost none yet: a few in a row would end it, as they should."""
        # None runs for a moment if the broker or the gateway was away.
        until(lambda: self.running_jobs() or not self.application.unanswered, self.lab.log, PATIENCE)
        jobs = self.running_jobs()
        if jobs:
            name, job = self.chance.choice(jobs)
            if self.lab.outlast("local", "kill", job).returncode == 0:  # else it has just ended
                self.killed.add(name)
                self.counts["jobs killed"] += 1

    def running_jobs(self) -> list[tuple[str, str]]:
        jobs = [(str(job["name"]), str(job["job"])) for job in self.lab.jobs() if job["phase"] == "running"]
        return [(name, job) for name, job in jobs if name not in self.killed]


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateBroker]:
    with private_broker() as private:
        yield private


@pytest.mark.slow
def test_a_storm_leaves_no_request_unanswered_and_computes_nothing_twice(
    broker: PrivateBroker, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("OUTLAST_GATEWAY_SEED", random.randrange(10**9)))
    began = time.monotonic()
    with gateway_lab(broker) as lab:
        storm = Storm(lab, broker, lab.application(), random.Random(seed))
        try:
            numbers = storm.walk(SMALL if REQUESTS < 1000 else LARGE, REQUESTS)
            storm.application.wait_for_answers(PATIENCE + REQUESTS, lab.log)
            lab.until_all_answered(PATIENCE)
        finally:
            application = storm.application
            storm.counts["requests"] = len(application.sent)
            storm.counts["unanswered"] = len(application.unanswered)
            storm.counts["computed twice"] = len(lab.computed_twice())
            storm.counts["answered twice"] = len(application.doubled())
            storm.counts["sent again by the application"] = len(application.repeated)
            storm.counts["seconds"] = round(time.monotonic() - began)
            counts = ", ".join("%s %d" % pair for pair in sorted(storm.counts.items()))
            record_property("seeds", "OUTLAST_GATEWAY_SEED=%d: %s" % (seed, counts))
        failed = {
            id: all_[0].answer for id, all_ in application.answers.items() if all_[0].answer.kind != "result"
        }
        assert not failed, failed
        # Twice only what was on its way to the broker, or from there, when one of the two died.
        deaths = sum(storm.counts[each] for each in storm.counts if each.startswith(("brokers", "gateways")))
        lab.assert_answered_once(application, numbers, doubled=5 * deaths)
        lab.stop(storm.process)
