"""What is lost, computed twice and answered twice while worker and broker are killed: the gateway and peers.

Each gets the same requests from the same application at the same broker, and the same
kills in the same order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway_contestants import Contestant, celery, gateway, pulsar
from gateway_scene import Scene
from verdicts import Goal, Row

from support.broker import Broker, PrivateBroker
from support.gateway_application import Application

#: Requests; how often the worker is killed; and the broker restarted, every other time with SIGKILL.
REQUESTS, WORKER_KILLS, BROKER_RESTARTS = 100, 5, 5
#: The longest training, and the longest time between two kills, in seconds.
LONGEST, APART = 4.0, 6.0
#: Seconds for the rest after the last kill, and without news before everything is over.
PATIENCE, QUIET = 90.0, 8.0
SMOKE = {"REQUESTS": 3, "WORKER_KILLS": 1, "BROKER_RESTARTS": 0, "LONGEST": 0.5, "APART": 0.5, "QUIET": 1.0}
#: The program of Galaxy's Pulsar; its package has so many others that it needs an environment of its own.
PULSAR = "pulsar-main"

Start = Callable[[Broker], contextlib.AbstractContextManager[Contestant]]


@dataclass
class Losses:
    """What came of all requests."""

    lost: int
    failed: int
    computed_twice: int
    answered_twice: int
    sent_again: int
    seconds: float


def peers(scene: Scene) -> list[Row]:
    none = Goal(most=0)
    rows = _rows("outlast gateway", _suffer(scene.broker, gateway), none)
    if importlib.util.find_spec("celery") is None:
        rows.append(Row("Celery", None, beside="celery is not installed; `make bench` installs it"))
    else:
        rows += _rows("Celery, acks_late", _suffer(scene.broker, celery))
    if (program := shutil.which(PULSAR)) is None:
        rows.append(Row("Pulsar", None, beside="%s is not on the PATH" % PULSAR))
    else:
        rows += _rows("Pulsar", _suffer(scene.broker, partial(pulsar, program=program)))
    return rows


def _rows(name: str, found: Losses, goal: Goal | None = None) -> list[Row]:
    beside = "of %d; %d workers killed, broker restarted %d times, %.0f s" % (
        *(REQUESTS, WORKER_KILLS, BROKER_RESTARTS, found.seconds),
    )
    return [
        Row(name + ": never answered", found.lost, "", goal, beside),
        Row(name + ": answered with a failure", found.failed, "", goal),
        Row(name + ": computed twice", found.computed_twice, "", goal),
        Row(
            name + ": answered twice",
            found.answered_twice,
            beside="the application sent %d again" % found.sent_again,
        ),
    ]


def _suffer(broker: PrivateBroker, start: Start) -> Losses:
    """Send the requests, kill in between, and count when all is over."""
    with broker.own_virtual_host() as own, start(own) as contestant:
        began = time.monotonic()
        contestant.start()
        _send_and_kill(broker, contestant)
        _settle(contestant.application)
        application = contestant.application
        lines = contestant.starts.read_text().splitlines() if contestant.starts.exists() else []
        numbers = Counter(line.split()[0] for line in lines)
        return Losses(
            lost=len(application.unanswered),
            failed=sum(not any(map(contestant.is_result, all_)) for all_ in application.answers.values()),
            computed_twice=sum(count > 1 for count in numbers.values()),
            answered_twice=len(application.doubled()),
            sent_again=len(application.repeated),
            seconds=time.monotonic() - began,
        )


def _send_and_kill(broker: PrivateBroker, contestant: Contestant) -> None:
    dice = random.Random(1)
    kills = ["worker"] * WORKER_KILLS + ["broker"] * BROKER_RESTARTS
    dice.shuffle(kills)
    unsent = [("id-%d" % number, number, dice.uniform(0, LONGEST)) for number in range(REQUESTS)]
    share = -(-REQUESTS // max(1, len(kills)))
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
