"""Everything that the thread of a link owns: the loop, two connections, and their channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from outlast.gateway.broker.amqp_connection import AmqpConnection, EventLoop
from outlast.gateway.broker.connection_keeper import ConnectionKeeper
from outlast.gateway.broker.link_health import LinkHealth, default_message_limit
from outlast.gateway.broker.pauses import PauseLimits
from outlast.gateway.broker.publishing_channel import PublishingChannel
from outlast.gateway.broker.queue_consumer import DeliveryTag, QueueConsumer
from outlast.gateway.broker.queue_plan import plan_queues
from outlast.gateway.requests import Delivery, OutgoingMessage, PublishResult
from outlast.gateway.settings import BrokerSettings, QueueSettings

#: The most bytes of a body that are kept; `Delivery.size` has the size of all of it.
LARGEST_BODY = 512 * 1024


class LinkReceiver(Protocol):
    """Receives what happens; called in the session's thread."""

    def add_delivery(self, delivery: Delivery) -> None:
        """Keep a message."""

    def drop_deliveries(self, generation: int) -> None:
        """Forget the messages of a channel that has ended."""

    def add_outcome(self, publication: OutgoingMessage, result: PublishResult, reason: str) -> None:
        """Keep the outcome of a publication."""

    def set_health(self, health: LinkHealth) -> None:
        """Replace the state of the link."""


class LinkSession:
    """Moves messages while `run` runs. The methods that end with `_soon` may be called from any thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        queues: Sequence[QueueSettings],
        *,
        progress_exchange: str,
        prefetch: int,
        limits: PauseLimits,
        receiver: LinkReceiver,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._receiver = receiver
        self._loop = EventLoop()
        self._measured_limit: int | None = None
        self._closing = 0
        self._consumers = {
            plan.name: QueueConsumer(
                self._loop,
                plan,
                prefetch,
                limits,
                on_delivery=receiver.add_delivery,
                on_lost=receiver.drop_deliveries,
                on_change=self._report,
            )
            for plan in plan_queues(queues)
        }
        # A message that is refused closes its channel: progress must not make answers unknown.
        self._answers = self._publishing_channel("")
        self._progress = self._publishing_channel(progress_exchange)
        self._wants_progress = bool(progress_exchange)
        self._consuming = self._keeper("consume", LARGEST_BODY, self._consume_up, self._consume_down)
        # Of a message that is returned only the properties are looked at.
        self._publishing = self._keeper("publish", 0, self._publish_up, self._publish_down)

    def run(self) -> None:
        """Move messages until everything is closed; raise what went wrong in here."""
        self._report()
        for keeper in (self._consuming, self._publishing):
            self._loop.call_soon(keeper.connect)
        self._loop.run()

    def close(self, patience: float) -> None:
        """Close the connections after `run` has raised: the broker would keep them, with all deliveries."""
        self.close_soon()
        self._loop.call_later(patience, self._loop.stop)
        self._loop.run()

    def abandon(self, reason: str) -> None:
        """Report what is unconfirmed as unknown, and free the loop, which does not run any more."""
        self._consume_down(reason)
        self._publish_down(reason)
        self._loop.close()

    def ack_soon(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries."""
        self._loop.call_soon(lambda: self._ack(deliveries))

    def set_prefetch_soon(self, prefetch: int) -> None:
        """Begin to consume anew with another limit of messages that are not acknowledged."""
        self._loop.call_soon(lambda: self._set_prefetch(prefetch))

    def publish_soon(self, publication: OutgoingMessage) -> None:
        """Publish a message."""
        self._loop.call_soon(lambda: self._offer(publication))

    def close_soon(self) -> None:
        """Close the connections and make `run` return."""
        self._loop.call_soon(self._close)

    def stop_soon(self) -> None:
        """Make `run` return at once."""
        self._loop.stop()

    # --- in the thread ------------------------------------------------------------------------------------

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            consumer = self._consumers.get(delivery.queue)
            if consumer is not None and isinstance(delivery.tag, DeliveryTag):
                consumer.ack(delivery.tag)

    def _set_prefetch(self, prefetch: int) -> None:
        for consumer in self._consumers.values():
            consumer.set_prefetch(prefetch)

    def _offer(self, publication: OutgoingMessage) -> None:
        limit = self._measured_limit
        if limit is not None and len(publication.body) > limit:
            reason = "not sent: the broker takes messages of at most %d bytes" % limit
            self._receiver.add_outcome(publication, PublishResult.TOO_LARGE, reason)
        elif publication.mandatory:
            self._answers.offer(publication)
        else:
            self._progress.offer(publication)

    def _close(self) -> None:
        for keeper in (self._consuming, self._publishing):
            keeper.close(self._closed)

    def _closed(self) -> None:
        self._closing += 1
        if self._closing == 2:
            self._loop.stop()

    def _keeper(
        self,
        purpose: str,
        largest_body: int,
        on_up: Callable[[AmqpConnection], None],
        on_down: Callable[[str], None],
    ) -> ConnectionKeeper:
        return ConnectionKeeper(
            self._loop,
            self._settings,
            self._limits,
            name="outlast gateway: " + purpose,
            largest_body=largest_body,
            on_up=on_up,
            on_down=on_down,
            on_change=self._connection_changed,
        )

    def _publishing_channel(self, exchange: str) -> PublishingChannel:
        return PublishingChannel(
            self._loop,
            self._limits,
            exchange=exchange,
            on_outcome=self._receiver.add_outcome,
            on_limit=self._learn_limit,
            on_change=self._report,
        )

    def _consume_up(self, connection: AmqpConnection) -> None:
        for consumer in self._consumers.values():
            consumer.connected(connection)

    def _consume_down(self, reason: str) -> None:
        for consumer in self._consumers.values():
            consumer.disconnected(reason)

    def _publish_up(self, connection: AmqpConnection) -> None:
        # It may be another broker, or have another configuration.
        self._measured_limit = None
        for channel in (self._answers, self._progress):
            channel.connected(connection)

    def _publish_down(self, reason: str) -> None:
        for channel in (self._answers, self._progress):
            channel.disconnected(reason)

    def _learn_limit(self, limit: int) -> None:
        self._measured_limit = limit
        self._report()

    def _connection_changed(self) -> None:
        if not self._publishing.blocked:
            for channel in (self._answers, self._progress):
                channel.send()
        self._report()

    def _report(self) -> None:
        keepers = (self._consuming, self._publishing)
        ups = [keeper.up_since for keeper in keepers]
        downs = [keeper.down_since for keeper in keepers if keeper.down_since is not None]
        last = min(keepers, key=lambda keeper: (keeper.up_since is not None, -keeper.changed))
        version = self._publishing.version or self._consuming.version
        self._receiver.set_health(
            LinkHealth(
                connected_since=None if downs else max(up for up in ups if up is not None),
                down_since=min(downs, default=None),
                reason=last.reason,
                failures=max(keeper.failures for keeper in keepers),
                blocked=self._publishing.blocked,
                blocked_since=self._publishing.blocked_since,
                progress=self._progress.refusal if self._wants_progress else "",
                version=version,
                message_limit=self._measured_limit or default_message_limit(version),
                queues=tuple(consumer.health for consumer in self._consumers.values()),
                time=time.time(),
            )
        )
