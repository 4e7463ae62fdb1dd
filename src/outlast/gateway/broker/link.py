"""The link to the broker: a thread that moves messages, and does nothing else.

Two connections: while the broker has an alarm it does not read from one that publishes, and would not read
acknowledgements there. Nothing of a message is interpreted here. What arrives is kept until `take`, what is
to be sent until its outcome is known. What ends is begun again, for ever, with pauses; `health` states what
is wrong, and since when.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Sequence

from outlast.gateway.broker.link_health import LinkHealth
from outlast.gateway.broker.link_session import LinkSession
from outlast.gateway.broker.pauses import PauseLimits, Pauses
from outlast.gateway.requests import Delivery, OutgoingMessage, PublishOutcome, PublishResult
from outlast.gateway.settings import BrokerSettings, QueueSettings

#: The most publications, and about the most bytes of them, whose outcome is not known yet.
MOST_PUBLICATIONS = 500
MOST_BYTES = 32 * 2**20


class BrokerLink:
    """Moves messages between the broker and this process. All methods may be called from any thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        queues: Sequence[QueueSettings],
        *,
        progress_exchange: str = "",
        prefetch: int | None = None,
        pauses: PauseLimits | None = None,
    ) -> None:
        self._settings = settings
        self._queues = tuple(queues)
        self._progress_exchange = progress_exchange
        self._prefetch = prefetch or settings.prefetch
        self._limits = pauses or PauseLimits()
        #: Guards all that follows.
        self._changed = threading.Condition()
        self._deliveries: deque[Delivery] = deque()
        self._outcomes: list[PublishOutcome] = []
        #: Publications whose outcome is not known yet.
        self._pending: dict[int, OutgoingMessage] = {}
        self._health = LinkHealth(down_since=time.time(), reason="not started")
        self._session: LinkSession | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._woken = False

    # --- for the service ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, which begins to connect."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="broker link", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Wait for outcomes of publications, then end the connections; `timeout` seconds in all at most.

        What is not acknowledged is delivered again, to the next consumer. Every publication has an
        outcome afterwards.
        """
        if self._thread is None:
            return
        until = time.monotonic() + timeout
        with self._changed:
            if self._health.connected_since is not None:
                self._changed.wait_for(lambda: not self._pending, timeout / 2)
            self._stopping = True
            self._changed.notify_all()
            if self._session is not None:
                self._session.close_soon()
        self._thread.join(max(0.0, until - time.monotonic() - timeout / 10))
        with self._changed:
            if self._session is not None:
                self._session.stop_soon()  # the broker does not close the connection
        self._thread.join(max(0.0, until - time.monotonic()))

    def take(self, most: int, timeout: float) -> list[Delivery]:
        """Return up to `most` deliveries; wait up to `timeout` seconds for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._deliveries or self._stopping, timeout)
            return [self._deliveries.popleft() for _ in range(min(most, len(self._deliveries)))]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries. Those of a channel that has ended since are delivered again."""
        with self._changed:
            if self._session is not None and deliveries:
                self._session.ack_soon(tuple(deliveries))

    def set_prefetch(self, prefetch: int | None) -> None:
        """Change how many messages may be taken and not acknowledged; None: as the settings have it.

        What is not acknowledged yet is delivered again.
        """
        with self._changed:
            wanted = prefetch or self._settings.prefetch
            if wanted == self._prefetch:
                return
            self._prefetch = wanted
            if self._session is not None:
                self._session.set_prefetch_soon(wanted)

    def publish(self, publication: OutgoingMessage) -> None:
        """Hand over a message. Its outcome follows in `outcomes`."""
        with self._changed:
            self._pending[id(publication)] = publication
            if self._session is not None:
                self._session.publish_soon(publication)
            else:
                self.add_outcome(publication, PublishResult.UNKNOWN, "not sent: the link is not running")

    @property
    def room(self) -> int:
        """How many publications may be handed over now; 0 without a connection and during an alarm."""
        with self._changed:
            health = self._health
            if health.connected_since is None or health.blocked:
                return 0
            if sum(len(each.body) for each in self._pending.values()) >= MOST_BYTES:
                return 0
            return max(0, MOST_PUBLICATIONS - len(self._pending))

    def outcomes(self) -> list[PublishOutcome]:
        """Return the outcomes that were not returned before."""
        with self._changed:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def wait(self, timeout: float, *, deliveries: bool = True) -> bool:
        """Wait up to `timeout` seconds for an outcome, a delivery or `wake`; return True if there was one."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: (
                    bool((deliveries and self._deliveries) or self._outcomes) or self._woken or self._stopping
                ),
                timeout,
            )
            self._woken = False
            return bool(found)

    def wake(self) -> None:
        """End a `wait`, or the next one: there is something to do that has not come from the broker."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    @property
    def health(self) -> LinkHealth:
        """The state of the link now."""
        with self._changed:
            return self._health

    # --- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        pauses = Pauses(self._limits)
        while not self._stopping:
            session = LinkSession(
                self._settings,
                self._queues,
                progress_exchange=self._progress_exchange,
                prefetch=self._prefetch,
                limits=self._limits,
                receiver=self,
            )
            with self._changed:
                self._session = session
            try:
                session.run()
                reason = "stopped"
            except Exception as error:  # a mistake in here must not leave the gateway deaf: begin anew
                reason = "internal error: %s" % _described(error)
                try:
                    session.close(1.0)
                except Exception as another:
                    reason += "; then %s" % _described(another)
            with self._changed:
                self._session = None
            session.abandon(reason)
            self._forget_all(reason)
            self.set_health(
                dataclasses.replace(
                    self.health,
                    connected_since=None,
                    down_since=time.time(),
                    reason=reason,
                    failures=pauses.failures,
                )
            )
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, pauses.next())

    def _forget_all(self, reason: str) -> None:
        with self._changed:
            pending = list(self._pending.values())
            self._deliveries.clear()
        for publication in pending:
            self.add_outcome(publication, PublishResult.UNKNOWN, reason)

    def set_health(self, health: LinkHealth) -> None:
        """Replace what `health` returns."""
        with self._changed:
            self._health = health
            self._changed.notify_all()

    def add_delivery(self, delivery: Delivery) -> None:
        """Keep a delivery for `take`."""
        with self._changed:
            self._deliveries.append(delivery)
            self._changed.notify_all()

    def drop_deliveries(self, generation: int) -> None:
        """Forget what was not taken of a channel that has ended: it is delivered again."""
        with self._changed:
            self._deliveries = deque(each for each in self._deliveries if each.tag.generation != generation)

    def add_outcome(self, publication: OutgoingMessage, result: PublishResult, reason: str) -> None:
        """Keep the outcome of a publication, unless it has one."""
        with self._changed:
            if self._pending.pop(id(publication), None) is None:
                return
            self._outcomes.append(PublishOutcome(publication.number, result, reason))
            self._changed.notify_all()


def _described(error: Exception) -> str:
    return "%s: %s" % (type(error).__name__, str(error)[:200])
