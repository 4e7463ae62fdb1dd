"""What is lost, computed twice and answered twice while worker and broker are killed: the gateway and Celery.

Each gets the same requests from the same application at the same broker, and the same kills in the same order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pika
from gateway_scene import Scene
from verdicts import Goal, Row

from support.broker import PASSWORD, USER, Broker, PrivateBroker, until
from support.gateway_application import REPLIES, Application
from support.gateway_lab import GatewayLab, gateway_lab

#: Requests; how often the worker is killed; and the broker restarted, every other time with SIGKILL.
REQUESTS, WORKER_KILLS, BROKER_RESTARTS = 100, 5, 5
#: The longest training, and the longest time between two kills, in seconds.
LONGEST, APART = 4.0, 6.0
#: Seconds for the rest after the last kill, and without news before everything is over.
PATIENCE, QUIET = 90.0, 8.0
SMOKE = {"REQUESTS": 3, "WORKER_KILLS": 1, "BROKER_RESTARTS": 0, "LONGEST": 0.5, "APART": 0.5, "QUIET": 1.0}
#: Trainings at the same time, as the hosts of the laboratory have.
PARALLEL = 8
QUOTA = {"running": 100, "waiting": 100_000, "waiting_per_user": 100_000, "per_day_per_user": 100_000}
CELERY_QUEUE = "celery"


class Contestant(Protocol):
    """Something that takes requests from a broker and answers them."""

    application: Application
    #: A file with a line for each start of a training, which begins with the number.
    starts: Path

    def start(self) -> None:
        """Start the process that consumes."""

    def kill(self) -> None:
        """Kill it with SIGKILL. Trainings that are under way are left alone."""

    def request(self, id: str, number: int, seconds: float) -> None:
        """Send a request."""


@dataclass
class Losses:
    """What came of all requests."""

    lost: int
    computed_twice: int
    answered_twice: int
    sent_again: int
    seconds: float


def peers(scene: Scene) -> list[Row]:
    contestants: dict[str, Callable[[Broker], contextlib.AbstractContextManager[Contestant]]] = {
        "outlast gateway": _gateway,
        "Celery, acks_late": _celery,
    }
    rows = []
    for name, contestant in contestants.items():
        if contestant is _celery and importlib.util.find_spec("celery") is None:
            rows.append(Row(name, None, beside="celery is not installed; `make bench` installs it"))
            continue
        with scene.broker.own_virtual_host() as own, contestant(own) as running:
            found = _suffer(scene.broker, running)
        ours = contestant is _gateway
        beside = "of %d; %d workers killed, broker restarted %d times, %.0f s" % (
            *(REQUESTS, WORKER_KILLS, BROKER_RESTARTS, found.seconds),
        )
        again = "the application sent %d again" % found.sent_again
        rows += [
            Row(name + ": never answered", found.lost, "", Goal(most=0) if ours else None, beside),
            Row(name + ": computed twice", found.computed_twice, "", Goal(most=0) if ours else None),
            Row(name + ": answered twice", found.answered_twice, "", None, again),
        ]
    return rows


def _suffer(broker: PrivateBroker, contestant: Contestant) -> Losses:
    """Send the requests, kill in between, and count when all is over."""
    dice = random.Random(1)
    kills = ["worker"] * WORKER_KILLS + ["broker"] * BROKER_RESTARTS
    dice.shuffle(kills)
    unsent = [("id-%d" % number, number, dice.uniform(0, LONGEST)) for number in range(REQUESTS)]
    share = -(-REQUESTS // max(1, len(kills)))
    began = time.monotonic()
    contestant.start()
    restarts = 0
    for kill in kills:
        for _ in range(min(share, len(unsent))):
            contestant.request(*unsent.pop())
        time.sleep(dice.uniform(0, APART))
        if kill == "worker":
            contestant.kill()
            contestant.start()
        else:
            restarts += 1
            (broker.kill if restarts % 2 else broker.stop)()
            broker.start()
    _settle(contestant.application)
    numbers = [line.split()[0] for line in contestant.starts.read_text().splitlines()]
    return Losses(
        lost=len(contestant.application.unanswered),
        computed_twice=sum(count > 1 for count in Counter(numbers).values()),
        answered_twice=len(contestant.application.doubled()),
        sent_again=len(contestant.application.repeated),
        seconds=time.monotonic() - began,
    )


def _settle(application: Application) -> None:
    """Wait until all is answered, or as long as that may take; then for what is answered once more."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and (application.unanswered or not application.all_sent):
        time.sleep(0.1)
    count, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET and time.monotonic() < end + PATIENCE:
        if (found := sum(map(len, application.answers.values()))) != count:
            count, since = found, time.monotonic()
        time.sleep(0.1)


@dataclass
class _Gateway:
    lab: GatewayLab
    application: Application
    process: subprocess.Popen[bytes] | None = None

    @property
    def starts(self) -> Path:
        return self.lab.starts

    def start(self) -> None:
        self.process = self.lab.up()

    def kill(self) -> None:
        assert self.process is not None
        self.lab.kill(self.process)

    def request(self, id: str, number: int, seconds: float) -> None:
        self.application.request(id, number=number, seconds=seconds)


@contextlib.contextmanager
def _gateway(broker: Broker) -> Iterator[_Gateway]:
    with gateway_lab(broker) as lab:
        lab.write_template("fast", quota=QUOTA)
        yield _Gateway(lab, lab.application())


class _CeleryApplication(Application):
    """The same application; its messages are those of Celery's protocol, version 2."""

    def properties(self, id: str) -> Any:
        headers = {"lang": "py", "task": "train", "id": id, "root_id": id, "parent_id": None, "group": None}
        return pika.BasicProperties(
            correlation_id=id,
            reply_to=REPLIES,
            delivery_mode=2,
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
        )


@dataclass
class _Celery:
    broker: Broker
    folder: Path
    application: Application
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def starts(self) -> Path:
        return self.folder / "starts"

    def start(self) -> None:
        address = "127.0.0.1:%d/%s" % (self.broker.port, self.broker.virtual_host)
        environment = {
            **os.environ,
            "BENCH_BROKER": "amqp://%s:%s@%s" % (USER, PASSWORD, address),
            "BENCH_STARTS": str(self.starts),
            "BENCH_REPLIES": REPLIES,
        }
        options = [
            "--concurrency",
            str(PARALLEL),
            "--loglevel",
            "INFO",
            "--without-gossip",
            "--without-mingle",
        ]
        with (self.folder / "celery.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "celery_worker", "worker", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=Path(__file__).parent,
                start_new_session=True,
            )
        self.processes.append(process)

    def kill(self) -> None:
        self.processes[-1].kill()
        self.processes[-1].wait(60)

    def request(self, id: str, number: int, seconds: float) -> None:
        import json

        embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        self.application.send(id, json.dumps([[number, seconds], {}, embedded]).encode())

    def close(self) -> None:
        """End everything: also what a killed worker left behind, in its session."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@contextlib.contextmanager
def _celery(broker: Broker) -> Iterator[_Celery]:
    folder = Path(tempfile.mkdtemp(prefix="outlast-bench-"))
    celery = _Celery(broker, folder, _CeleryApplication(broker, requests=CELERY_QUEUE))
    try:
        yield celery
    finally:
        celery.application.close()
        celery.close()
        shutil.rmtree(folder, ignore_errors=True)
