"""Requests taken from a full queue, recorded and acknowledged, next to pika alone and to SQLite alone."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway_scene import MANY, PATIENCE, QUORUM, Scene, assert_empty, connect, fill, request_body
from verdicts import Goal, Row, in_turns, ratio

from outlast.gateway.assembly import Gateway, assemble
from outlast.gateway.intake import Intake
from outlast.gateway.request_admission import Admission
from outlast.gateway.service import BATCH
from outlast.gateway.settings import BrokerSettings
from support.broker import Broker
from support.gateway_application import REPLIES, REQUESTS
from support.gateway_lab import gateway_lab

COUNT = 5000
SMOKE = {"COUNT": 30}
#: As the gateway's.
PREFETCH = BrokerSettings.prefetch


def recording(scene: Scene) -> list[Row]:
    cases = {
        "pika": lambda: _pika(scene.broker),
        "sqlite": _sqlite,
        "recorded": lambda: _gateway(scene.broker, "fast", _record),
        "accepted": lambda: _gateway(scene.broker, "fast", _serve_until_accepted),
        "refused": lambda: _gateway(scene.broker, "unknown", _serve_until_answered),
    }
    found = in_turns(cases, scene.rounds)

    def compared(name: str, case: str, peer: str, goal: Goal | None = None) -> Row:
        rates = ", ".join("%.0f" % rate for rate in found[case])
        return Row(name, ratio(found[case], found[peer]), "×", goal, "%s/s" % rates)

    peers = [
        Row("pika alone: consume and ack", found["pika"][-1], "/s", None, "prefetch %d" % PREFETCH),
        Row("SQLite alone: durable", found["sqlite"][-1], "/s", None, "%d in a transaction" % BATCH),
    ]
    return [
        *peers,
        compared("recorded and acked, of pika alone", "recorded", "pika", Goal(least=1 / 3)),
        compared("recorded and acked, of SQLite alone", "recorded", "sqlite"),
        compared("recorded, acked, checked and accepted, of pika alone", "accepted", "pika"),
        compared("recorded, acked, refused, answered and confirmed, of pika alone", "refused", "pika"),
    ]


def _pika(broker: Broker) -> float:
    """Return messages per second that are consumed and acknowledged, and nothing else."""
    with broker.own_virtual_host() as own:
        fill(own, COUNT, lambda number: request_body("fast", number))
        began = time.monotonic()
        connection = connect(own)
        channel = connection.channel()
        channel.queue_declare(REQUESTS, durable=True, arguments=QUORUM)
        channel.basic_qos(prefetch_count=PREFETCH)
        for taken, (method, _, _) in enumerate(channel.consume(REQUESTS), 1):
            channel.basic_ack(method.delivery_tag)
            if taken == COUNT:
                break
        connection.close()
        rate = COUNT / (time.monotonic() - began)
        assert_empty(own)
    return rate


def _sqlite() -> float:
    """Return rows per second that are durable, in transactions as large as the gateway's."""
    bodies = [request_body("fast", number) for number in range(COUNT)]
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        database = sqlite3.connect(Path(folder) / "rows.sqlite", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE messages (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        began = time.monotonic()
        for start in range(0, COUNT, BATCH):
            database.execute("BEGIN IMMEDIATE")
            for body in bodies[start : start + BATCH]:
                database.execute("INSERT INTO messages (body) VALUES (?)", (body,))
            database.execute("COMMIT")
        rate = COUNT / (time.monotonic() - began)
        database.close()
    return rate


def _gateway(broker: Broker, template: str, serve: Callable[[Gateway], None]) -> float:
    """Return requests per second that a gateway has served, from before it connects."""
    with broker.own_virtual_host() as own, gateway_lab(own) as lab:
        lab.write_template("fast", quota={**MANY, "running": 1})
        fill(own, COUNT, lambda number: request_body(template, number))
        gateway = assemble(lab.directory)
        try:
            began = time.monotonic()
            gateway.link.start()
            serve(gateway)
            rate = COUNT / (time.monotonic() - began)
        finally:
            gateway.link.stop(10.0)
            gateway.close()
        assert_empty(own)
        if template == "unknown":
            connection = connect(own)
            answers = connection.channel().queue_declare(REPLIES, passive=True).method.message_count
            connection.close()
            assert answers == COUNT, "%d of %d were answered" % (answers, COUNT)
    return rate


def _record(gateway: Gateway) -> None:
    """Record and acknowledge, and interpret nothing."""
    admission = Admission(gateway.record, {}, lambda *_: None)
    intake = Intake(gateway.record, {}, admission, gateway.audit)
    until, taken = time.monotonic() + PATIENCE, 0
    while taken < COUNT:
        assert time.monotonic() < until, "only %d were taken" % taken
        deliveries = gateway.link.take(BATCH, 0.5)
        if deliveries:
            intake.record_deliveries(deliveries, gateway.link.ack, time.time())
            taken += len(deliveries)


def _serve_until_accepted(gateway: Gateway) -> None:
    """Serve until all requests were interpreted. Nobody supervises the runs, so that all but one wait."""
    until, interpreted = time.monotonic() + PATIENCE, 0
    while interpreted < COUNT:
        assert time.monotonic() < until, "only %d were interpreted" % interpreted
        interpreted += gateway.service.step(0.5).interpreted
    assert gateway.record.open_requests("fast") == COUNT, gateway.record.counts()


def _serve_until_answered(gateway: Gateway) -> None:
    """Serve until all answers are confirmed."""
    until, interpreted = time.monotonic() + PATIENCE, 0
    while interpreted < COUNT or gateway.service.has_unconfirmed or gateway.record.waiting_answers()[0]:
        assert time.monotonic() < until, "only %d were interpreted" % interpreted
        interpreted += gateway.service.step(0.5).interpreted
