"""The connection of a client: it sends one message and waits for the answer, in the caller's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from outlast.gateway.broker.amqp_connection import (
    AmqpChannel,
    AmqpConnection,
    ChannelEnd,
    EventLoop,
    Incoming,
)
from outlast.gateway.broker.broker_credentials import BrokerCredentials
from outlast.gateway.message_formats.encoding import routing_word
from outlast.gateway.requester.client_request import ClientRequest
from outlast.gateway.requester.requester import LinkLost, LinkRefused, Received
from outlast.gateway.requests import OutgoingMessage, PublishOutcome, PublishResult
from outlast.gateway.settings import BrokerSettings

#: The most bytes of an answer: the most that a broker can be set to take.
LARGEST_ANSWER = 512 * 2**20
#: Messages that are delivered and not acknowledged: those for others are kept back until the end.
PREFETCH = 100
#: Seconds for which the broker may take to close a connection.
CLOSING = 2.0
#: Codes with which a broker forbids something for good: no right, and other properties of the queue.
_REFUSALS = {403, 404, 406}
_TOO_LARGE = 406


class BrokerClientLink:
    """A `ClientLink` to a RabbitMQ broker."""

    def __init__(self, settings: BrokerSettings, credentials: BrokerCredentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._loop: EventLoop | None = None
        self._connection: AmqpConnection | None = None
        self._replies: AmqpChannel | None = None
        self._publishing: AmqpChannel | None = None
        self._is_open = False
        #: Why the connection, or a channel that is needed, has ended.
        self._lost = ""
        self._refused = ""
        self._received: deque[tuple[Received, int]] = deque()
        self._last = 0
        self._outcome: PublishOutcome | None = None

    def open(self, request: ClientRequest, timeout: float) -> None:
        """Connect, consume the queue for the answer and ask for confirms. Raise LinkLost or LinkRefused."""
        self._loop, self._lost, self._refused = EventLoop(), "", ""
        self._received.clear()
        self._is_open = False
        self._connection = AmqpConnection(
            self._loop,
            self._settings,
            self._credentials,
            name="outlast gateway send",
            largest_body=LARGEST_ANSWER,
            on_open=lambda: self._open_channels(request),
            on_end=self._end,
        )
        self._run(lambda: self._is_open, timeout)
        if not self._is_open:
            raise LinkLost("the broker did not answer in time")

    def _open_channels(self, request: ClientRequest) -> None:
        assert self._connection is not None
        if request.reply_to:
            self._connection.open_channel(
                lambda channel: self._consume_replies(channel, request), self._channel_ended
            )
        else:
            self._connection.open_channel(self._ask_for_confirms, self._channel_ended)

    def _consume_replies(self, channel: AmqpChannel, request: ClientRequest) -> None:
        self._replies = channel
        connection = self._connection
        assert connection is not None

        def open_publishing() -> None:
            connection.open_channel(self._ask_for_confirms, self._channel_ended)

        def consume() -> None:
            channel.consume(
                request.reply_to,
                self._on_reply,
                lambda: self._end("the broker deleted the queue %s" % request.reply_to),
                open_publishing,
            )

        own = request.own_reply_queue
        channel.set_prefetch(
            PREFETCH,
            lambda: channel.declare_queue(request.reply_to, consume, passive=not own, exclusive=own),
        )
        if request.progress:
            connection.open_channel(
                lambda progress: self._consume_progress(progress, request), lambda _: self._wake()
            )

    def _consume_progress(self, channel: AmqpChannel, request: ClientRequest) -> None:
        """Follow progress; without the right to do so, or the exchange, there is none."""
        name = "%s-progress" % request.reply_to
        key = "request.%s.#" % routing_word(request.id)

        def consume() -> None:
            channel.consume(name, on_message, self._wake, self._wake)

        def on_message(incoming: Incoming) -> None:
            channel.ack(incoming.number)
            received = Received(incoming.properties.correlation_id, incoming.body, is_progress=True)
            self._received.append((received, 0))
            self._wake()

        def bind() -> None:
            channel.bind_queue(name, request.progress, key, consume)

        channel.declare_queue(name, bind, exclusive=True)

    def _ask_for_confirms(self, channel: AmqpChannel) -> None:
        self._publishing = channel
        channel.confirm(self._on_confirm, self._on_return, self._on_open)

    def _on_open(self) -> None:
        self._is_open = True
        self._wake()

    def _on_reply(self, incoming: Incoming) -> None:
        received = Received(incoming.properties.correlation_id, incoming.body)
        self._received.append((received, incoming.number))
        self._wake()

    def publish(self, publication: OutgoingMessage, timeout: float) -> PublishOutcome:
        """Publish a message; return what became of it. Raise LinkLost."""
        assert self._publishing is not None
        self._outcome = None
        self._publishing.publish(publication)
        self._run(lambda: self._outcome is not None, timeout)
        return self._outcome or self._not_confirmed()

    def _not_confirmed(self) -> PublishOutcome:
        blocked = self._connection.blocked if self._connection is not None else ""
        reason = "the broker has an alarm: %s" % blocked if blocked else "no confirm in time"
        return PublishOutcome(1, PublishResult.UNKNOWN, reason)

    def _on_return(self, _incoming: Incoming) -> None:
        self._outcome = PublishOutcome(1, PublishResult.RETURNED)

    def _on_confirm(self, _number: int, _multiple: bool, accepted: bool) -> None:
        # A message that was returned is confirmed, too.
        if self._outcome is None:
            result = PublishResult.CONFIRMED if accepted else PublishResult.NACKED
            self._outcome = PublishOutcome(1, result)
        self._wake()

    def receive(self, timeout: float) -> Received | None:
        """Return the next message; None if there is none in time. Raise LinkLost."""
        self._run(lambda: bool(self._received), timeout)
        if not self._received:
            return None
        received, number = self._received.popleft()
        self._last = number or self._last
        return received

    def acknowledge(self) -> None:
        """Acknowledge the reply that was received last. What was not is delivered to others afterwards."""
        if self._replies is not None and self._replies.is_open:
            self._replies.ack(self._last)

    def close(self) -> None:
        """End the connection; does nothing if there is none."""
        if self._loop is None:
            return
        if self._connection is not None and not self._lost:
            self._connection.close()
            with suppress(LinkLost, LinkRefused):  # which is the aim
                self._run(lambda: False, CLOSING)
        self._loop.close()
        self._loop = self._connection = self._replies = self._publishing = None

    def _channel_ended(self, end: ChannelEnd) -> None:
        if self._publishing is not None and end.code == _TOO_LARGE and self._is_open:
            self._outcome = PublishOutcome(1, PublishResult.TOO_LARGE, end.reason)
        elif end.code in _REFUSALS:
            self._refused = "the broker refused: %s" % end.reason
        else:
            self._lost = self._lost or end.reason
        self._wake()

    def _end(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.stop()

    def _run(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Serve the connection until something is done or the time is over. Raise LinkLost or LinkRefused."""
        assert self._loop is not None
        end = time.monotonic() + timeout
        while not is_done():
            if self._refused:
                raise LinkRefused(self._refused)
            if self._lost:
                raise LinkLost(self._lost)
            left = end - time.monotonic()
            if left <= 0:
                return
            cancel = self._loop.call_later(left, self._loop.stop)
            self._loop.run()
            cancel()
