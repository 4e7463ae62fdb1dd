"""What the benchmarks of the gateway share: a broker of their own, and queues that are filled quickly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

# The broker and the laboratory are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.broker import PASSWORD, USER, Broker, PrivateBroker, until
from support.gateway_application import REPLIES, REQUESTS

#: As the gateway declares its queue of requests.
QUORUM = {"x-queue-type": "quorum"}
#: A template's quota that refuses nothing.
MANY = {"running": 100, "waiting": 100_000, "waiting_per_user": 100_000, "per_day_per_user": 100_000}
#: Seconds after which a measurement has failed.
PATIENCE = 600.0


@dataclass(frozen=True)
class Scene:
    """Where all is measured."""

    broker: PrivateBroker
    rounds: int


def connect(broker: Broker) -> Any:
    """Return a connection of pika's."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            broker.port,
            broker.virtual_host,
            pika.PlainCredentials(USER, PASSWORD),
            socket_timeout=10,
            blocked_connection_timeout=60,
        )
    )


def request_body(template: str, number: int, seconds: float = 0.0) -> bytes:
    """Return a request to train."""
    parameters = {"number": number, "seconds": seconds}
    return json.dumps(
        {"outlast": 1, "kind": "train", "template": template, "parameters": parameters}
    ).encode()


def request_properties(id: str) -> Any:
    """Return the properties of a request of a good application."""
    return pika.BasicProperties(
        message_id=id,
        correlation_id=id,
        reply_to=REPLIES,
        delivery_mode=2,
        user_id=USER,
        content_type="application/json",
    )


def fill(broker: Broker, count: int, body: Callable[[int], bytes]) -> None:
    """Put so many requests into the queue, which is created, and wait until all are there."""
    connection = connect(broker)
    try:
        channel = connection.channel()
        channel.queue_declare(REPLIES, durable=True)
        channel.queue_declare(REQUESTS, durable=True, arguments=QUORUM)
        for number in range(count):
            channel.basic_publish("", REQUESTS, body(number), request_properties("id-%d" % number))
        until(lambda: waiting(channel) >= count, "the queue was not filled", PATIENCE)
    finally:
        connection.close()


def waiting(channel: Any, queue: str = REQUESTS) -> int:
    """Return how many messages are ready in a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def assert_empty(broker: Broker, queue: str = REQUESTS) -> None:
    """Raise AssertionError unless the queue is empty; nobody consumes it any more."""
    connection = connect(broker)
    try:
        left = waiting(connection.channel(), queue)
        assert left == 0, "%d messages were not acknowledged" % left
    finally:
        connection.close()
