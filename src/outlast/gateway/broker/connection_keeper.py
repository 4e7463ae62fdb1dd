"""Keep a connection to the broker: whenever it ends, another is made, for as long as the gateway runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from outlast.errors import BadInput
from outlast.gateway.broker.amqp_connection import AmqpConnection, EventLoop
from outlast.gateway.broker.broker_credentials import read_broker_credentials
from outlast.gateway.broker.pauses import PauseLimits, Pauses
from outlast.gateway.settings import BrokerSettings

_NOT_YET = "not connected yet"


class ConnectionKeeper:
    """One connection, and the next. `on_up` and `on_down` alternate; `on_change` follows every change."""

    def __init__(
        self,
        loop: EventLoop,
        settings: BrokerSettings,
        limits: PauseLimits,
        *,
        name: str,
        largest_body: int,
        on_up: Callable[[AmqpConnection], None],
        on_down: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._limits = limits
        self._pauses = Pauses(limits)
        self._name = name
        self._largest_body = largest_body
        self._on_up = on_up
        self._on_down = on_down
        self._on_change = on_change
        self._closing: Callable[[], None] | None = None
        self._connection: AmqpConnection | None = None
        self.up_since: float | None = None
        self.down_since: float | None = time.time()
        self.reason = _NOT_YET
        self.blocked = ""
        self.blocked_since: float | None = None
        self.version = ""
        #: The monotonic time at which it began or ended last.
        self.changed = time.monotonic()

    @property
    def failures(self) -> int:
        """How often connecting has failed since the connection was up."""
        return self._pauses.failures if self.up_since is None else 0

    def connect(self) -> None:
        """Begin to connect."""
        if self._closing is not None:
            return
        try:
            # Read at each attempt: a new password is used without a restart.
            credentials = read_broker_credentials(self._settings.credentials)
            self._connection = AmqpConnection(
                self._loop,
                self._settings,
                credentials,
                name=self._name,
                largest_body=self._largest_body,
                on_open=self._opened_now,
                on_end=self._ended,
                on_blocked=self._alarm,
            )
        except BadInput as error:
            self._ended(str(error))

    def close(self, done: Callable[[], None]) -> None:
        """Close the connection and make no other; call `done` when it is closed."""
        self._closing = done
        if self._connection is None:
            done()
        else:
            self._connection.close()

    def _opened_now(self) -> None:
        assert self._connection is not None
        self.up_since, self.down_since, self.changed = time.time(), None, time.monotonic()
        self.version = self._connection.version
        if self.reason == _NOT_YET:
            self.reason = ""
        self._on_up(self._connection)
        self._on_change()

    def _alarm(self, reason: str) -> None:
        self.blocked, self.blocked_since = reason, time.time() if reason else None
        self._on_change()

    def _ended(self, reason: str) -> None:
        was_up = self.up_since is not None
        self._connection = None
        opened, self.changed = self.changed, time.monotonic()
        self.reason, self.blocked, self.blocked_since = reason, "", None
        if was_up:
            self.up_since, self.down_since = None, time.time()
            # A broker that accepts connections only to close them is not one that works.
            if self.changed - opened > self._limits.most:
                self._pauses.reset()
            self._on_down(reason)
        if self._closing is not None:
            self._closing()
        else:
            self._loop.call_later(self._pauses.next(), self.connect)
        self._on_change()
