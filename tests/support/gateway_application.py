"""A web application that behaves well: it sends requests until the broker has them, and collects answers.

Its queues are durable, its messages persistent and mandatory, and confirms are awaited. When the connection
ends, it sends everything again, under the same ids, that was not confirmed.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pika
from pika import exceptions

from outlast.gateway.requester.client_answer import Answer, read_answer
from support.broker import PASSWORD, USER, Broker, until

REQUESTS, REPLIES = "train", "results"
#: Seconds between two connections, and the longest silence of a broker.
_PAUSE, _SILENCE = 0.3, 5


@dataclass(frozen=True)
class Received:
    """An answer as it arrived."""

    message_id: str
    body: bytes
    redelivered: bool

    @property
    def answer(self) -> Answer:
        return read_answer(self.body)

    @property
    def result(self) -> Any:
        """The content of `result.json`; the answer is a result."""
        answer = self.answer
        assert answer.kind == "result", answer
        return json.loads(next(file.content or b"" for file in answer.files if file.name == "result.json"))


class Application:
    """Sends requests and collects answers, in two threads, until it is closed."""

    def __init__(
        self,
        broker: Broker,
        replies: str = REPLIES,
        reply_arguments: Mapping[str, Any] | None = None,
        collects: bool = True,
        requests: str = REQUESTS,
    ) -> None:
        """`collects` False: the queue of its answers is not declared before `collect`."""
        self._broker = broker
        self._requests = requests
        self._replies = replies
        self._arguments = dict(reply_arguments or {})
        self._lock = threading.Lock()
        self._unsent: deque[tuple[str, bytes]] = deque()
        #: By id, in the order in which they came.
        self.answers: dict[str, list[Received]] = {}
        self.sent: list[str] = []
        #: What was published more than once, because no confirm came. It may be answered twice.
        self.repeated: set[str] = set()
        self._published: set[str] = set()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._send)
        if collects:
            self.collect()

    def collect(self) -> None:
        """Begin to take answers."""
        self._start(self._collect)

    def request(self, id: str, template: str = "fast", **parameters: Any) -> None:
        """Send a request to train as soon as the broker takes it."""
        body = {"outlast": 1, "kind": "train", "template": template, "parameters": parameters}
        self.send(id, json.dumps(body).encode())

    def send(self, id: str, body: bytes) -> None:
        """Send a message."""
        with self._lock:
            self.sent.append(id)
            self._unsent.append((id, body))

    def properties(self, id: str) -> Any:
        """Return the properties of a request."""
        return pika.BasicProperties(
            message_id=id,
            correlation_id=id,
            reply_to=self._replies,
            delivery_mode=2,
            user_id=USER,
            content_type="application/json",
        )

    @property
    def unanswered(self) -> list[str]:
        with self._lock:
            return [id for id in self.sent if id not in self.answers]

    @property
    def all_sent(self) -> bool:
        with self._lock:
            return not self._unsent

    def doubled(self) -> dict[str, list[Received]]:
        """Return the answers that were sent more than once; what the broker delivered again is one."""
        with self._lock:
            found = {id: [each for each in all_ if not each.redelivered] for id, all_ in self.answers.items()}
        return {id: all_ for id, all_ in found.items() if len(all_) > 1}

    def wait_for_answers(self, seconds: float, what: object = "") -> None:
        until(
            lambda: self.all_sent and not self.unanswered,
            lambda: "unanswered: %s\n%s" % (self.unanswered[:20], what() if callable(what) else what),
            seconds,
        )

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _start(self, work: Callable[[Any], None]) -> None:
        thread = threading.Thread(target=self._forever, args=(work,), daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- in the threads -----------------------------------------------------------------------------------

    def _forever(self, work: Callable[[Any], None]) -> None:
        while not self._stop.is_set():
            # Whatever ends the connection, the work goes on with the next one.
            with contextlib.suppress(exceptions.AMQPError, OSError):
                connection = self._connect()
                try:
                    work(connection)
                finally:
                    with contextlib.suppress(exceptions.AMQPError, OSError):
                        connection.close()
            self._stop.wait(_PAUSE)

    def _connect(self) -> Any:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self._broker.port,
                self._broker.virtual_host,
                pika.PlainCredentials(USER, PASSWORD),
                heartbeat=_SILENCE,
                socket_timeout=_SILENCE,
                stack_timeout=2 * _SILENCE,
                blocked_connection_timeout=2 * _SILENCE,
            )
        )

    def _send(self, connection: Any) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        while not self._stop.is_set():
            if not self._unsent:
                connection.process_data_events(0.05)
                continue
            id, body = self._unsent[0]
            if id in self._published:
                self.repeated.add(id)
            # Returned or refused: the gateway has not created the queue yet, or it is full.
            self._published.add(id)
            try:
                channel.basic_publish("", self._requests, body, self.properties(id), mandatory=True)
            except (exceptions.UnroutableError, exceptions.NackError):
                self._published.discard(id)
                raise
            with self._lock:
                self._unsent.popleft()

    def _collect(self, connection: Any) -> None:
        channel = connection.channel()
        channel.queue_declare(self._replies, durable=True, arguments=self._arguments)
        channel.basic_qos(prefetch_count=50)

        def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            found = Received(properties.message_id or "", body, bool(method.redelivered))
            with self._lock:
                self.answers.setdefault(properties.correlation_id, []).append(found)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(self._replies, take)
        while not self._stop.is_set() and channel.is_open:
            connection.process_data_events(0.2)
