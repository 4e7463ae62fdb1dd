"""Consume one queue on a channel of its own: a refusal that concerns one queue leaves the others alone.

The steps: declare it passively, create it if it is missing, limit what is delivered, consume. If the broker
refuses one, does not reply, or ends the delivery later, they are begun again after a pause.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from outlast.gateway.broker.amqp_connection import (
    AmqpChannel,
    AmqpConnection,
    ChannelEnd,
    EventLoop,
    Incoming,
)
from outlast.gateway.broker.link_health import QueueHealth, QueueState
from outlast.gateway.broker.pauses import PauseLimits, Pauses
from outlast.gateway.broker.queue_plan import QueuePlan
from outlast.gateway.requests import Delivery

#: Seconds for all steps together. A quorum queue without its majority does not reply.
_PATIENCE = 30.0
#: Seconds before a queue is created again after that made the broker close the connection: RabbitMQ 4.3 does
#: so if queues that are neither durable nor exclusive are not permitted.
_AFTER_CLOSED_CONNECTION = 600.0
_generations = itertools.count(1)


@dataclass(frozen=True)
class DeliveryTag:
    """Identifies a delivery: its number on the channel of this generation, which is never used again."""

    generation: int
    number: int


class QueueConsumer:
    """Delivers a queue's messages to `on_delivery`, whatever happens to queue, channel and connection."""

    def __init__(
        self,
        loop: EventLoop,
        plan: QueuePlan,
        prefetch: int,
        limits: PauseLimits,
        *,
        on_delivery: Callable[[Delivery], None],
        on_lost: Callable[[int], None],
        on_change: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._prefetch = prefetch
        self._pauses = Pauses(limits)
        self._on_delivery = on_delivery
        self._on_lost = on_lost
        self._on_change = on_change
        self._connection: AmqpConnection | None = None
        self._channel: AmqpChannel | None = None
        self._generation = 0
        self._unacked: set[int] = set()
        self._creating = False
        self._create_after = 0.0
        self._cancel_timer: Callable[[], None] | None = None
        self.health = QueueHealth(plan.name, since=time.time())

    @property
    def name(self) -> str:
        return self._plan.name

    def connected(self, connection: AmqpConnection) -> None:
        """Begin to consume."""
        self._connection = connection
        self._begin(create=False)

    def disconnected(self, reason: str) -> None:
        """Forget the channel: the broker delivers again what was not acknowledged."""
        self._connection = None
        self._leave_channel()
        if self._creating:
            self._creating = False
            self._create_after = time.monotonic() + _AFTER_CLOSED_CONNECTION
            self._become(
                QueueState.REFUSED, "it does not exist, and creating it ended the connection: " + reason
            )
        else:
            self._become(QueueState.WAITING, "no connection")

    def set_prefetch(self, prefetch: int) -> None:
        """Consume with another limit of messages that are not acknowledged, from a new channel on."""
        self._prefetch = prefetch
        if self.health.state is QueueState.CONSUMED:
            self._begin(create=False)

    def ack(self, tag: DeliveryTag) -> None:
        """Acknowledge a delivery, unless it was of an earlier channel or is acknowledged already."""
        if tag.generation == self._generation and tag.number in self._unacked and self._channel is not None:
            self._unacked.discard(tag.number)
            if self._channel.is_open:
                self._channel.ack(tag.number)

    # --- the steps ----------------------------------------------------------------------------------------

    def _begin(self, create: bool) -> None:
        """Open a channel and declare the queue, passively or to create it."""
        self._leave_channel()
        if self._connection is None or not self._connection.is_open:
            return
        self._generation = next(_generations)
        self._creating = create
        self._cancel_timer = self._loop.call_later(_PATIENCE, self._no_reply)
        self._channel = self._connection.open_channel(self._declare, self._ended)

    def _declare(self, channel: AmqpChannel) -> None:
        if not self._creating:
            channel.declare_queue(self.name, self._limit, passive=True)
            return
        creation = self._plan.creation(self._connection.version if self._connection else "")
        channel.declare_queue(self.name, self._limit, durable=creation.durable, arguments=creation.arguments)

    def _limit(self) -> None:
        self._creating = False
        assert self._channel is not None
        self._channel.set_prefetch(self._prefetch, self._consume)

    def _consume(self) -> None:
        assert self._channel is not None
        self._channel.consume(self.name, self._deliver, self._cancelled, self._consumed)

    def _consumed(self) -> None:
        self._stop_timer()
        self._pauses.reset()
        self._become(QueueState.CONSUMED, "")

    def _deliver(self, message: Incoming) -> None:
        properties = message.properties
        if not self._plan.is_dead_letters and (properties.death or properties.original_expiration):
            # Anyone can write such a header.
            properties = dataclasses.replace(properties, death="", original_expiration=None)
        self._unacked.add(message.number)
        self._on_delivery(
            Delivery(
                self.name,
                message.body,
                properties,
                message.redelivered,
                DeliveryTag(self._generation, message.number),
                message.size,
            )
        )

    # --- what goes wrong ----------------------------------------------------------------------------------

    def _ended(self, end: ChannelEnd) -> None:
        """Follow the end of the channel."""
        if end.code == 0:
            return  # the connection's end, which `disconnected` reports
        creating, missing = self._creating, end.code == 404
        self._channel = None
        self._creating = False
        if missing and not creating and self._plan.create and time.monotonic() >= self._create_after:
            self._begin(create=True)
            return
        self._become(QueueState.MISSING if missing else QueueState.REFUSED, end.reason)
        self._again()

    def _cancelled(self) -> None:
        self._become(QueueState.CANCELLED, "the broker ended the delivery: the queue was deleted or moved")
        self._again()

    def _no_reply(self) -> None:
        self._cancel_timer = None
        self._become(QueueState.REFUSED, "the broker did not reply within %d s" % _PATIENCE)
        self._again()

    def _again(self) -> None:
        self._leave_channel()
        self._cancel_timer = self._loop.call_later(self._pauses.next(), lambda: self._begin(create=False))

    def _leave_channel(self) -> None:
        self._stop_timer()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._unacked.clear()
        if self._generation:
            self._on_lost(self._generation)
            self._generation = 0

    def _stop_timer(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None

    def _become(self, state: QueueState, reason: str) -> None:
        if (state, reason) != (self.health.state, self.health.reason):
            self.health = QueueHealth(self.name, state, reason, time.time())
            self._on_change()
