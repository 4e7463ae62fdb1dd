"""Publish on one channel, with confirms, and find out what became of every message.

A message that the broker refuses (too large, no permission, no such exchange) closes the channel, and what
was on its way then is unknown. So large messages travel alone, and after such an end as many messages are
sent one by one as were unknown: the next refusal concerns exactly one message, which is reported.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable

from outlast.gateway.broker.amqp_connection import (
    AmqpChannel,
    AmqpConnection,
    ChannelEnd,
    EventLoop,
    Incoming,
)
from outlast.gateway.broker.pauses import PauseLimits, Pauses
from outlast.gateway.requests import OutgoingMessage, PublishResult

#: A message with more bytes than this is sent when no other is on its way.
_LARGE = 4 * 2**20
_TOO_LARGE = re.compile(r"message size (\d+) (?:is larger than|exceeds).*?(\d+)")
_PATIENCE = 30.0


class PublishingChannel:
    """Publishes what `offer` is given and calls `on_outcome` once for each."""

    def __init__(
        self,
        loop: EventLoop,
        limits: PauseLimits,
        *,
        exchange: str,
        on_outcome: Callable[[OutgoingMessage, PublishResult, str], None],
        on_limit: Callable[[int], None],
        on_change: Callable[[], None],
    ) -> None:
        """`exchange` is declared before anything is published, if it is not empty."""
        self._loop = loop
        self._pauses = Pauses(limits)
        self._exchange = exchange
        self._on_outcome = on_outcome
        self._on_limit = on_limit
        self._on_change = on_change
        self._connection: AmqpConnection | None = None
        self._channel: AmqpChannel | None = None
        self._ready = False
        self._creating = False
        self._waiting: deque[OutgoingMessage] = deque()
        self._unconfirmed: OrderedDict[int, OutgoingMessage] = OrderedDict()
        self._returned: dict[int, str] = {}
        self._sent = 0
        #: How many of the next messages travel alone, and whether the last one does.
        self._singly = 0
        self._alone = False
        self._cancel_timer: Callable[[], None] | None = None
        #: Why nothing can be published although there is a connection.
        self.refusal = ""

    def connected(self, connection: AmqpConnection) -> None:
        """Begin to publish."""
        self._connection = connection
        self._begin(create=False)

    def disconnected(self, reason: str) -> None:
        """Report all that is not confirmed as unknown."""
        self._connection = None
        self._stop_timer()
        self._channel, self._ready = None, False
        self._singly = max(self._singly, len(self._unconfirmed))
        self._give_up(reason)
        self._drop_waiting(PublishResult.UNKNOWN, reason)

    def offer(self, publication: OutgoingMessage) -> None:
        """Publish it as soon as it is its turn."""
        if self._connection is None:
            self._on_outcome(publication, PublishResult.UNKNOWN, "not sent: no connection")
        elif self.refusal:
            self._on_outcome(publication, PublishResult.REFUSED, self.refusal)
        else:
            self._waiting.append(publication)
            self.send()

    def send(self) -> None:
        """Publish what waits, unless the broker does not read it now or a message travels alone."""
        while self._waiting and self._ready and self._connection is not None and self._channel is not None:
            alone = self._singly > 0 or len(self._waiting[0].body) > _LARGE
            if self._connection.blocked or (self._unconfirmed and (alone or self._alone)):
                return
            publication = self._waiting.popleft()
            self._sent += 1
            self._unconfirmed[self._sent] = publication
            self._alone = alone
            self._channel.publish(publication)

    # --- opening ------------------------------------------------------------------------------------------

    def _begin(self, create: bool) -> None:
        if self._connection is None or not self._connection.is_open:
            return
        if self._channel is not None:
            self._channel.close()
        self._ready, self._sent, self._alone, self._creating = False, 0, False, create
        self._stop_timer()
        self._cancel_timer = self._loop.call_later(_PATIENCE, self._no_reply)
        self._channel = self._connection.open_channel(self._declare, self._ended)

    def _declare(self, channel: AmqpChannel) -> None:
        if self._exchange:
            channel.declare_exchange(self._exchange, self._confirm, passive=not self._creating)
        else:
            self._confirm()

    def _confirm(self) -> None:
        assert self._channel is not None
        self._creating = False
        self._channel.confirm(self._confirmed, self._was_returned, self._is_ready)

    def _is_ready(self) -> None:
        self._stop_timer()
        self._ready, self.refusal = True, ""
        self._pauses.reset()
        self._on_change()
        self.send()

    def _no_reply(self) -> None:
        self._again("the broker did not reply within %d s" % _PATIENCE)

    def _again(self, reason: str) -> None:
        """Begin again after a pause; until then nothing is taken."""
        self._stop_timer()
        self.refusal, self._ready = reason, False
        self._drop_waiting(PublishResult.REFUSED, reason)
        self._cancel_timer = self._loop.call_later(self._pauses.next(), lambda: self._begin(create=False))
        self._on_change()

    def _stop_timer(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None

    # --- what becomes of the messages ---------------------------------------------------------------------

    def _confirmed(self, number: int, multiple: bool, accepted: bool) -> None:
        # With `multiple`, 0 stands for all.
        numbers = (
            [each for each in self._unconfirmed if each <= number or not number] if multiple else [number]
        )
        for each in numbers:
            publication = self._unconfirmed.pop(each, None)
            if publication is None:
                continue
            returned = self._returned.pop(each, None)
            if returned is not None:
                self._on_outcome(publication, PublishResult.RETURNED, returned)
            elif accepted:
                self._on_outcome(publication, PublishResult.CONFIRMED, "")
            else:
                reason = "the broker did not take it: the queue is full, or failed"
                self._on_outcome(publication, PublishResult.NACKED, reason)
        if not self._unconfirmed:
            self._alone = False
            self._singly = max(0, self._singly - 1)
        self.send()

    def _was_returned(self, message: Incoming) -> None:
        """Remember which message has no queue; its confirm follows."""
        for number, publication in self._unconfirmed.items():
            if number not in self._returned and _is_same(publication, message):
                self._returned[number] = "there is no queue %s" % publication.routing_key
                return

    def _ended(self, end: ChannelEnd) -> None:
        """Follow the end of the channel."""
        if end.code == 0:
            return  # the connection's end, which `disconnected` reports
        self._channel = None
        if not self._ready:
            if end.code == 404 and not self._creating:
                self._begin(create=True)
            else:
                self._again(end.reason)
            return
        self._blame(end)
        self._singly = max(self._singly, len(self._unconfirmed))
        self._give_up(end.reason)
        self._begin(create=False)

    def _blame(self, end: ChannelEnd) -> None:
        """Report the message that the broker refused, if it can be known."""
        too_large = _TOO_LARGE.search(end.reason)
        if too_large:
            size, limit = int(too_large[1]), int(too_large[2])
            self._on_limit(limit)
            guilty = [number for number, each in self._unconfirmed.items() if len(each.body) == size]
            result = PublishResult.TOO_LARGE
        else:
            guilty = list(self._unconfirmed) if len(self._unconfirmed) == 1 else []
            result = PublishResult.REFUSED
        for number in guilty[:1]:
            self._on_outcome(self._unconfirmed.pop(number), result, end.reason)

    def _give_up(self, reason: str) -> None:
        unknown, self._unconfirmed = self._unconfirmed, OrderedDict()
        self._returned.clear()
        for publication in unknown.values():
            self._on_outcome(publication, PublishResult.UNKNOWN, reason)

    def _drop_waiting(self, result: PublishResult, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for publication in waiting:
            self._on_outcome(publication, result, "not sent: " + reason)


def _is_same(publication: OutgoingMessage, message: Incoming) -> bool:
    """True if the returned message is this one, or one that differs in nothing that matters."""
    return (
        publication.mandatory
        and publication.exchange == message.exchange
        and publication.routing_key == message.routing_key
        and (publication.correlation_id or None) == (message.properties.correlation_id or None)
        and (publication.message_id.encode() or None) == (message.properties.message_id or None)
        and len(publication.body) == message.size
    )
