"""A connection to a RabbitMQ broker. The only module that imports pika: all its peculiarities end here.

Everything runs in the thread that runs the `EventLoop`. Nothing here waits: an operation takes a callback.
Pika's own blocking connection hangs while the broker has an alarm, publishes one message per round trip,
and is silent when a channel is closed or a consumer is cancelled; its callbacks are not.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.errors import BadInput
from outlast.gateway.broker.broker_credentials import BrokerCredentials
from outlast.gateway.broker.frame_filter import FrameFilter, MessageContent
from outlast.gateway.requests import OutgoingMessage, Properties
from outlast.gateway.settings import BrokerSettings
from outlast.text import printable

try:
    import pika
    from pika import exceptions
    from pika.adapters.select_connection import IOLoop, SelectConnection
    from pika.adapters.utils import connection_workflow
except ImportError as error:
    raise BadInput("the gateway needs the package pika: type `pip install 'outlast[gateway]'`") from error

#: What went wrong is in `LinkHealth`. Pika would log frames, and with them what strangers sent.
logging.getLogger("pika").setLevel(logging.CRITICAL + 1)

#: The most characters that are kept of a broker's message.
_LONGEST_REASON = 500


@dataclass(frozen=True)
class ChannelEnd:
    """Why a channel is closed. `code` is AMQP's, such as 404; 0 if its connection ended."""

    code: int
    reason: str


@dataclass(frozen=True)
class Incoming:
    """A message that the broker delivered or returned; `size` is that of its whole body."""

    properties: Properties
    body: bytes
    size: int
    number: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


class EventLoop:
    """The loop in which connections live. `call_soon` and `stop` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = IOLoop()

    def run(self) -> None:
        """Run until `stop`; raise what a callback raised."""
        self._loop.start()

    def stop(self) -> None:
        """Make `run` return."""
        self._loop.add_callback_threadsafe(self._loop.stop)

    def close(self) -> None:
        """Free the descriptors of a loop that does not run."""
        self._loop.close()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop's thread."""
        self._loop.add_callback_threadsafe(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Run `call` after that time; return a function that cancels this."""
        timer = self._loop.call_later(seconds, call)
        return lambda: self._loop.remove_timeout(timer)


class AmqpChannel:
    """A channel that is being opened, or is open. `on_end` is called once; after `close`, nothing is."""

    def __init__(
        self,
        connection: AmqpConnection,
        on_open: Callable[[AmqpChannel], None],
        on_end: Callable[[ChannelEnd], None],
    ) -> None:
        self._connection = connection
        self._on_end: Callable[[ChannelEnd], None] | None = on_end
        self._channel = connection._connection.channel(on_open_callback=self._then(lambda: on_open(self)))
        self._channel.add_on_close_callback(self._on_close)

    def _then(self, call: Callable[[], None]) -> Callable[[Any], None]:
        """Return a callback for pika that does nothing once the channel was left."""

        def then(_reply: Any) -> None:
            if self._on_end is not None:
                call()

        return then

    @property
    def is_open(self) -> bool:
        return bool(self._channel.is_open)

    def close(self) -> None:
        """Close it without a callback."""
        self._on_end = None
        if not (self._channel.is_closed or self._channel.is_closing):
            self._channel.close()

    def declare_queue(
        self,
        name: str,
        done: Callable[[], None],
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a queue. A passive declaration changes nothing; a refusal ends the channel.

        An exclusive queue is this connection's, and ends with it.
        """
        self._channel.queue_declare(
            name,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            arguments=dict(arguments) if arguments else None,
            callback=self._then(done),
        )

    def bind_queue(self, name: str, exchange: str, key: str, done: Callable[[], None]) -> None:
        """Let an exchange put messages with this routing key, which may be a pattern, into a queue."""
        self._channel.queue_bind(name, exchange, key, callback=self._then(done))

    def declare_exchange(self, name: str, done: Callable[[], None], *, passive: bool = False) -> None:
        """Declare a durable topic exchange."""
        self._channel.exchange_declare(
            name, exchange_type="topic", passive=passive, durable=True, callback=self._then(done)
        )

    def set_prefetch(self, count: int, done: Callable[[], None]) -> None:
        """Limit the messages of each later consumer that are delivered and not acknowledged."""
        self._channel.basic_qos(prefetch_count=count, callback=self._then(done))

    def consume(
        self,
        queue: str,
        on_message: Callable[[Incoming], None],
        on_cancel: Callable[[], None],
        done: Callable[[], None],
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Let the broker deliver a queue's messages. `on_cancel` is called if the broker ends this."""
        self._channel.add_on_cancel_callback(self._then(on_cancel))

        def deliver(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            content = self._connection.content(properties)
            if self._on_end is None:
                return
            on_message(
                Incoming(
                    content.properties, body, content.size, method.delivery_tag, bool(method.redelivered)
                )
            )

        self._channel.basic_consume(
            queue, deliver, callback=self._then(done), arguments=dict(arguments) if arguments else None
        )

    def ack(self, number: int) -> None:
        """Acknowledge a delivery of this channel."""
        self._channel.basic_ack(number)

    def confirm(
        self,
        on_confirm: Callable[[int, bool, bool], None],
        on_return: Callable[[Incoming], None],
        done: Callable[[], None],
    ) -> None:
        """Ask for confirms: `on_confirm(number, multiple, accepted)`. Numbers count publications from 1."""

        def confirmed(frame: Any) -> None:
            accepted = isinstance(frame.method, pika.spec.Basic.Ack)
            on_confirm(frame.method.delivery_tag, bool(frame.method.multiple), accepted)

        def returned(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            content = self._connection.content(properties)
            on_return(
                Incoming(
                    content.properties,
                    body,
                    content.size,
                    exchange=_text(method.exchange),
                    routing_key=_text(method.routing_key),
                )
            )

        self._channel.add_on_return_callback(returned)
        self._channel.confirm_delivery(confirmed, callback=self._then(done))

    def publish(self, publication: OutgoingMessage) -> None:
        """Publish a message. What becomes of it is reported to the callbacks of `confirm`."""
        self._channel.basic_publish(
            publication.exchange,
            publication.routing_key,
            publication.body,
            pika.BasicProperties(
                content_type=publication.content_type or None,
                correlation_id=publication.correlation_id,
                message_id=publication.message_id or None,
                type=publication.type or None,
                expiration=None if publication.expiration is None else str(publication.expiration),
                delivery_mode=2 if publication.persistent else 1,
                reply_to=publication.reply_to or None,
                user_id=publication.user_id or None,
            ),
            mandatory=publication.mandatory,
        )

    def _on_close(self, _channel: Any, reason: Any) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        if isinstance(reason, exceptions.ChannelClosedByBroker):
            on_end(ChannelEnd(reason.reply_code, _shortened(reason.reply_text)))
        else:
            on_end(ChannelEnd(0, "the connection ended"))


class AmqpConnection:
    """A connection that is being made, is open, or has ended; `on_end(reason)` is called exactly once."""

    def __init__(
        self,
        loop: EventLoop,
        settings: BrokerSettings,
        credentials: BrokerCredentials,
        *,
        name: str,
        largest_body: int,
        on_open: Callable[[], None],
        on_end: Callable[[str], None],
        on_blocked: Callable[[str], None] | None = None,
    ) -> None:
        """Begin to connect. Raises BadInput if the file of trusted authorities cannot be used."""
        self._settings = settings
        self._filter = FrameFilter(largest_body)
        self._on_end: Callable[[str], None] | None = on_end
        #: Why the broker does not read what is published now; empty if it does.
        self.blocked = ""
        parameters = _parameters(settings, credentials, name)
        self._connection = _FilteredConnection(self._filter, parameters, loop._loop, on_open, self._ended)
        report = on_blocked or (lambda _: None)

        def blocked(_connection: Any, frame: Any) -> None:
            self.blocked = _shortened(_text(frame.method.reason)) or "no reason given"
            report(self.blocked)

        def unblocked(_connection: Any, _frame: Any) -> None:
            self.blocked = ""
            report("")

        self._connection.add_on_connection_blocked_callback(blocked)
        self._connection.add_on_connection_unblocked_callback(unblocked)

    @property
    def is_open(self) -> bool:
        return bool(self._connection.is_open)

    @property
    def version(self) -> str:
        """The broker's version, such as `3.10.8`."""
        properties = self._connection.server_properties or {}
        return _shortened(_text(properties.get("version", "")))

    def open_channel(
        self, on_open: Callable[[AmqpChannel], None], on_end: Callable[[ChannelEnd], None]
    ) -> AmqpChannel:
        """Return a channel that is being opened."""
        return AmqpChannel(self, on_open, on_end)

    def content(self, properties: Any) -> MessageContent:
        """Return what the filter kept of the message with these properties."""
        return self._filter.pop(properties.message_id)

    def close(self) -> None:
        """Begin to close it; `on_end` is called when it is closed."""
        # An end that has already begun is an end, too.
        with contextlib.suppress(exceptions.ConnectionWrongStateError):
            self._connection.close()

    def _ended(self, error: BaseException) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(describe(error, self._settings))


class _FilteredConnection(SelectConnection):  # type: ignore[misc]
    """Pika's connection, with a filter before its decoder."""

    def __init__(
        self,
        frame_filter: FrameFilter,
        parameters: Any,
        loop: IOLoop,
        on_open: Callable[[], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        self._frame_filter = frame_filter
        super().__init__(
            parameters,
            on_open_callback=lambda _: on_open(),
            on_open_error_callback=lambda _, error: on_end(_as_exception(error)),
            on_close_callback=lambda _, error: on_end(_as_exception(error)),
            custom_ioloop=loop,
        )

    def _on_data_available(self, data_in: bytes) -> None:
        super()._on_data_available(self._frame_filter.feed(data_in))


def describe(error: BaseException, settings: BrokerSettings) -> str:
    """Return a sentence about the end of a connection, without anything secret."""
    place = "%s:%d" % (settings.host, settings.port)
    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "the certificate of %s is not trusted: %s" % (place, _shortened(cause.verify_message))
    if isinstance(cause, ssl.SSLError):
        return "TLS with %s failed: %s" % (place, _shortened(cause.reason or str(cause)))
    if isinstance(cause, (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError)):
        return "%s refused the user or the password" % place
    if isinstance(cause, exceptions.ConnectionClosedByBroker):
        return _closed_by_broker(cause, place, settings)
    if isinstance(cause, exceptions.ProbableAccessDeniedError):
        return "%s refused the access to the virtual host %s" % (place, settings.virtual_host)
    if isinstance(cause, exceptions.IncompatibleProtocolError):
        return "%s ended the handshake: it does not speak AMQP 0-9-1%s" % (
            place,
            " without TLS" if not settings.tls else "",
        )
    if isinstance(cause, exceptions.AMQPHeartbeatTimeout):
        return "%s was silent for %d s" % (place, settings.heartbeat)
    if isinstance(cause, exceptions.ConnectionClosedByClient):
        return "closed by the gateway"
    if isinstance(cause, (connection_workflow.AMQPConnectorStackTimeout, exceptions.ConnectionOpenAborted)):
        return "%s accepted the connection and did not answer within %g s" % (place, settings.connect_timeout)
    if isinstance(cause, OSError):
        return "%s cannot be reached: %s" % (place, _shortened(cause.strerror or str(cause)))
    if isinstance(cause, exceptions.StreamLostError):
        return "the connection to %s was lost" % place
    # Not its text, which may quote what was sent.
    return "the connection to %s failed: %s" % (place, type(cause).__name__)


def _closed_by_broker(cause: Any, place: str, settings: BrokerSettings) -> str:
    text = _shortened(_text(cause.reply_text))
    if cause.reply_code == 403:
        return "%s refused the user or the password" % place
    if cause.reply_code == 530:
        return "%s refused the virtual host %s: %s" % (place, settings.virtual_host, text)
    return "%s closed the connection: %d %s" % (place, cause.reply_code, text)


def _innermost(error: Any) -> Any:
    """Return the cause that says most: pika wraps it several times."""
    for _ in range(10):
        if isinstance(error, connection_workflow.AMQPConnectionWorkflowFailed):
            error = error.exceptions[-1]
        elif isinstance(error, connection_workflow.AMQPConnectorPhaseErrorBase):
            error = error.exception
        elif isinstance(error, exceptions.ConnectionClosed):
            return error
        elif (
            isinstance(error, exceptions.AMQPConnectionError)
            and error.args
            and isinstance(error.args[0], BaseException)
        ):
            error = error.args[0]
        else:
            return error
    return error


def _as_exception(error: object) -> BaseException:
    return error if isinstance(error, BaseException) else exceptions.AMQPConnectionError()


def _parameters(settings: BrokerSettings, credentials: BrokerCredentials, name: str) -> Any:
    options = None
    if settings.tls:
        try:
            context = ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            raise BadInput("%s is not a file of certificates: %s" % (settings.ca_file, error)) from error
        options = pika.SSLOptions(context, settings.host)
    return pika.ConnectionParameters(
        host=settings.host,
        port=settings.port,
        virtual_host=settings.virtual_host,
        credentials=pika.PlainCredentials(credentials.user, credentials.password, erase_on_connect=True),
        ssl_options=options,
        heartbeat=settings.heartbeat,
        connection_attempts=1,
        socket_timeout=settings.connect_timeout,
        stack_timeout=settings.connect_timeout,
        client_properties={"connection_name": name, "product": "outlast gateway"},
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _shortened(text: object) -> str:
    return printable(_text(text)[:_LONGEST_REASON])
