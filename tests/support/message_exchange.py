"""Send messages with any properties, and collect what arrives in queues, over plain connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions

from support.broker import PASSWORD, USER, Broker

#: The broker replaces this name by one that leads to the connection which sent the message.
DIRECT = "amq.rabbitmq.reply-to"
#: How often a message is published that the broker refuses, and the seconds between.
_TRIES, _PAUSE = 20, 0.5


@dataclass(frozen=True)
class Arrived:
    """A message as it arrived in a queue of answers."""

    queue: str
    correlation: bytes | None
    body: bytes
    redelivered: bool


class Exchange:
    """A connection of one user: publishes, and collects from queues."""

    def __init__(self, broker: Broker, user: str = USER, password: str = PASSWORD) -> None:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                broker.port,
                broker.virtual_host,
                pika.PlainCredentials(user, password),
                heartbeat=0,
                socket_timeout=10,
                blocked_connection_timeout=30,
            )
        )
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        #: How many messages were published to each queue.
        self.sent: dict[str, int] = {}
        self.arrived: list[Arrived] = []

    def declare(self, queue: str, durable: bool = True, arguments: Mapping[str, Any] | None = None) -> None:
        self._channel.queue_declare(queue, durable=durable, arguments=dict(arguments or {}))

    def publish(self, queue: str, body: bytes, properties: Mapping[str, Any]) -> None:
        """Publish to a queue that exists, and wait until the broker has it.

        A quorum queue that has no leader yet refuses messages.
        """
        for left in reversed(range(_TRIES)):
            try:
                self._channel.basic_publish(
                    "", queue, body, pika.BasicProperties(**properties), mandatory=True
                )
                break
            except pika.exceptions.NackError:
                if not left:
                    raise
                self._connection.sleep(_PAUSE)
        self.sent[queue] = self.sent.get(queue, 0) + 1

    def collect(self, *queues: str) -> None:
        """Take what arrives in these queues from now on."""
        for queue in queues:
            self._channel.basic_consume(queue, self._take)

    def allow_direct_replies(self) -> None:
        """Let messages ask for an answer by the broker's own name for that; it is collected, too."""
        self._channel.basic_consume(DIRECT, self._take_direct, auto_ack=True)

    def _take_direct(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        self.arrived.append(Arrived(DIRECT, None, body, False))

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        correlation = properties.correlation_id
        if isinstance(correlation, str):
            correlation = correlation.encode()
        self.arrived.append(Arrived(method.routing_key, correlation, body, bool(method.redelivered)))
        channel.basic_ack(method.delivery_tag)

    def until(
        self, condition: Callable[[], Any], otherwise: Callable[[], str], seconds: float = 90.0
    ) -> None:
        """Collect until the condition is true."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, otherwise()
            self._connection.process_data_events(0.1)

    def answers_to(self, correlation: bytes | None) -> list[Arrived]:
        return [one for one in self.arrived if one.correlation == correlation]

    def await_answer(self, correlation: bytes, what: Callable[[], str], number: int = 1) -> Arrived:
        """Return the newest answer of at least `number`."""
        self.until(lambda: len(self.answers_to(correlation)) >= number, what)
        return self.answers_to(correlation)[-1]

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def exchange(broker: Broker, user: str = USER, password: str = PASSWORD) -> Iterator[Exchange]:
    found = Exchange(broker, user, password)
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def broker_users(broker: Broker, names: Sequence[str], password: str) -> Iterator[None]:
    """Create users who may do everything in this virtual host, until the end of the block."""
    for name in names:
        broker.api("PUT", "users/" + name, {"password": password, "tags": ""})
        broker.permit(name, ".*", ".*", ".*")
    try:
        yield
    finally:
        for name in names:
            broker.api("DELETE", "users/" + name)
