"""A request that computes nothing, from its publication to its answer, next to `outlast submit` and `up`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from gateway_scene import MANY, PATIENCE, Scene, connect, request_body, request_properties
from verdicts import Row, ratio

from support.broker import Broker
from support.gateway_application import REPLIES, REQUESTS
from support.gateway_lab import PARAMS, GatewayLab, gateway_lab

#: Requests one after the other in a round, and all at once.
ONE_BY_ONE, AT_ONCE = 5, 100
SMOKE = {"ONE_BY_ONE": 1, "AT_ONCE": 2}


def overhead(scene: Scene) -> list[Row]:
    singles, many = [], []
    with scene.broker.own_virtual_host() as own, gateway_lab(own) as lab:
        lab.write_template("fast", quota=MANY)
        lab.up()
        lab.until_ready()
        client = _Client(own)
        client.answer([client.request()])  # the local cluster's daemon is started
        for number in range(scene.rounds):
            requested = [_timed(lambda: client.answer([client.request()])) for _ in range(ONE_BY_ONE)]
            submitted = [
                _timed(lambda name="one-%d-%d" % (number, i): _run(lab, name, 1)) for i in range(ONE_BY_ONE)
            ]
            singles.append((statistics.median(requested), statistics.median(submitted)))
            all_ = _timed(lambda: client.answer([client.request() for _ in range(AT_ONCE)]))
            many.append((all_, _timed(lambda name="all-%d" % number: _run(lab, name, AT_ONCE))))
        client.close()
    return [
        _compared("one request: time to its answer, of submit and up", singles, 1),
        _compared("%d requests at once: time to the last answer, of submit and up" % AT_ONCE, many, AT_ONCE),
    ]


def _compared(name: str, pairs: Sequence[tuple[float, float]], count: int) -> Row:
    ours, theirs = zip(*pairs, strict=True)
    beside = "%s against %s s" % tuple(", ".join("%.2f" % one for one in some) for some in (ours, theirs))
    extra = statistics.median((a - b) / count for a, b in pairs)
    return Row(name, ratio(ours, theirs), "×", None, "%s; %+.0f ms per request" % (beside, 1000 * extra))


def _timed(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


class _Client:
    """Publishes with confirms and waits for answers, on two connections."""

    def __init__(self, broker: Broker) -> None:
        self._publishing, self._consuming = connect(broker), connect(broker)
        self._out, self._in = self._publishing.channel(), self._consuming.channel()
        self._out.confirm_delivery()
        self._in.queue_declare(REPLIES, durable=True)
        self._in.basic_consume(REPLIES, self._take, auto_ack=True)
        self._numbers = 0
        self._answered: set[str] = set()

    def request(self) -> str:
        """Send a request and return its id."""
        self._numbers += 1
        id = "id-%d" % self._numbers
        self._publishing.process_data_events(0)
        self._out.basic_publish(
            "", REQUESTS, request_body("fast", self._numbers), request_properties(id), mandatory=True
        )
        return id

    def answer(self, ids: Sequence[str]) -> None:
        """Wait until these are answered."""
        until = time.monotonic() + PATIENCE
        while not self._answered.issuperset(ids):
            assert time.monotonic() < until, "unanswered: %s" % (set(ids) - self._answered)
            self._consuming.process_data_events(1.0)

    def close(self) -> None:
        self._publishing.close()
        self._consuming.close()

    def _take(self, _channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        assert b'"result"' in body, body[:500]
        self._answered.add(properties.correlation_id)


def _run(lab: GatewayLab, name: str, runs: int) -> None:
    """Submit the same runs as an experiment, and supervise them until they have ended."""
    code = (lab.directory.template("fast") / "train.py").read_text()
    params = {**PARAMS, "command": "python3 train.py 1 0", "runs": runs}
    experiment = lab.lab.experiment(name, {"train.py": code}, **params)
    for command in ("submit", "up"):
        ended = lab.outlast(command, str(experiment))
        assert ended.returncode == 0, ended.output
