"""What will not work with the broker, before the first request. Nothing on the broker is changed.

Rights are found out by operations that the broker refuses in any case: it looks at the rights first, and then
at an argument that it cannot accept.
"""

from __future__ import annotations

import ipaddress
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from outlast.errors import BadInput
from outlast.gateway.broker.amqp_connection import AmqpChannel, AmqpConnection, ChannelEnd, EventLoop
from outlast.gateway.broker.broker_credentials import read_broker_credentials
from outlast.gateway.broker.link_health import default_message_limit, parse_version
from outlast.gateway.broker.queue_plan import QueuePlan, plan_queues
from outlast.gateway.requests import OutgoingMessage
from outlast.gateway.settings import BrokerSettings, QueueSettings

#: Seconds for one question to the broker.
_PATIENCE = 10.0
_REFUSED, _NOT_FOUND, _PRECONDITION = 403, 404, 406
_UNACCEPTABLE = "not a number"


class FindingLevel(str, Enum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `advice` says what to do if it is not ok."""

    level: FindingLevel
    subject: str
    text: str
    advice: str = ""


def check_broker(
    settings: BrokerSettings, queues: Sequence[QueueSettings], progress_exchange: str = ""
) -> list[Finding]:
    """Return what was found; without a connection only why there is none."""
    place = "%s:%d" % (settings.host, settings.port)
    try:
        probe = _Probe(settings)
    except BadInput as error:
        return [Finding(FindingLevel.ERROR, "broker", str(error))]
    try:
        reason = probe.connect()
        if reason:
            advice = (
                "see `broker` in gateway.yaml; is the broker running, and does a firewall let this host in?"
            )
            return [Finding(FindingLevel.ERROR, "broker", reason, advice)]
        findings = [
            Finding(FindingLevel.OK, "broker", "RabbitMQ %s at %s" % (probe.version or "?", place)),
            _check_encryption(settings),
            *_check_version(probe.version, queues),
            _check_publishing(settings),
        ]
        for queue in queues:
            if queue.dialect != "rodan" and not queue.dead_letters:
                findings.append(_without_dead_letters(queue))
        for plan in plan_queues(queues):
            findings += _check_queue(probe, plan)
        if progress_exchange:
            findings.append(_check_exchange(probe, progress_exchange))
        return findings
    finally:
        probe.close()


def _check_encryption(settings: BrokerSettings) -> Finding:
    if settings.tls:
        text = "TLS, and the certificate of %s is trusted" % settings.host
        return Finding(FindingLevel.OK, "encryption", text)
    if _is_loopback(settings.host):
        return Finding(FindingLevel.OK, "encryption", "none; the connection does not leave this host")
    return Finding(
        FindingLevel.WARNING,
        "encryption",
        "the password and all messages cross the network unencrypted",
        "set `tls: yes` and the port for it, usually 5671",
    )


def _check_version(version: str, queues: Sequence[QueueSettings]) -> Iterator[Finding]:
    numbers = parse_version(version)
    limit = default_message_limit(version)
    if numbers is None or limit is None:
        yield Finding(FindingLevel.WARNING, "version", "the broker does not state its version")
        return
    yield Finding(
        FindingLevel.OK,
        "message limit",
        "%d MiB, if the broker's `max_message_size` is not set; larger answers are sent by reference"
        % (limit // 2**20),
    )
    rodan = [queue.name for queue in queues if queue.dialect == "rodan"]
    if rodan and numbers >= (4, 3):
        yield Finding(
            FindingLevel.WARNING,
            "queue %s" % ", ".join(rodan),
            "RabbitMQ 4.3 refuses to create shared queues that are not durable, and ends the connection",
            "set `deprecated_features.permit.transient_nonexcl_queues = true` in rabbitmq.conf",
        )


def _check_publishing(settings: BrokerSettings) -> Finding:
    """Publish a message that no queue takes: the broker returns it, if the user may publish at all.

    On a connection of its own, which the broker does not read any more if it has an alarm.
    """
    publication = OutgoingMessage(0, "", "outlast-check-%s" % uuid.uuid4(), b"")

    def publish(channel: AmqpChannel, done: Callable[[], None]) -> None:
        channel.confirm(
            lambda _number, _multiple, _accepted: done(),
            lambda _message: None,
            lambda: channel.publish(publication),
        )

    probe = _Probe(settings)
    try:
        reason = probe.connect()
        end = ChannelEnd(0, reason) if reason else probe.ask(publish)
        blocked = probe.blocked
    finally:
        probe.close()
    if blocked:
        return Finding(
            FindingLevel.ERROR,
            "alarm",
            "the broker takes no messages now: %s" % blocked,
            "free memory or disk space on the broker's host; answers wait until then",
        )
    if end is not None:
        return Finding(
            FindingLevel.ERROR,
            "answers",
            "the user may not publish to the default exchange: %s" % end.reason,
            "give it the right to write to `amq.default`",
        )
    return Finding(FindingLevel.OK, "answers", "the user may publish to reply queues")


def _without_dead_letters(queue: QueueSettings) -> Finding:
    return Finding(
        FindingLevel.WARNING,
        "queue %s" % queue.name,
        "requests that expire, or are delivered too often, vanish without an answer",
        "set `dead_letters` for this queue",
    )


def _check_queue(probe: _Probe, plan: QueuePlan) -> Iterator[Finding]:
    subject = "queue %s" % plan.name
    end = probe.ask(lambda channel, done: channel.declare_queue(plan.name, done, passive=True))
    if end is None:
        yield from _check_existing(probe, plan, subject)
    elif end.code == _NOT_FOUND:
        yield _check_creation(probe, plan, subject)
    else:
        yield Finding(FindingLevel.ERROR, subject, "it cannot be used: %s" % end.reason)


def _check_creation(probe: _Probe, plan: QueuePlan, subject: str) -> Finding:
    if not plan.create:
        advice = "create it, or set `declare: yes` for it"
        return Finding(FindingLevel.ERROR, subject, "it does not exist", advice)
    unacceptable = {"x-expires": _UNACCEPTABLE}
    end = probe.ask(lambda channel, done: channel.declare_queue(plan.name, done, arguments=unacceptable))
    if end is not None and end.code == _REFUSED:
        text = "it does not exist, and the user may not create it"
        return Finding(
            FindingLevel.ERROR, subject, text, "create it, or give the user the right to configure it"
        )
    return Finding(FindingLevel.OK, subject, "it does not exist; the gateway creates it")


def _check_existing(probe: _Probe, plan: QueuePlan, subject: str) -> Iterator[Finding]:
    unacceptable = {"x-priority": _UNACCEPTABLE}
    end = probe.ask(
        lambda channel, done: channel.consume(plan.name, lambda _: None, lambda: None, done, unacceptable)
    )
    if end is not None and end.code == _REFUSED:
        text = "the user may not read it: %s" % end.reason
        yield Finding(FindingLevel.ERROR, subject, text, "give it the right to read this queue")
    else:
        yield Finding(FindingLevel.OK, subject, "it exists, and the user may read it")
    if not plan.create:
        return
    creation = plan.creation(probe.version)
    # An existing queue is not changed by this: the broker compares, and names the first difference.
    end = probe.ask(
        lambda channel, done: channel.declare_queue(
            plan.name, done, durable=creation.durable, arguments=creation.arguments
        )
    )
    if end is not None and end.code == _PRECONDITION:
        yield _difference(plan, subject, end.reason)


def _difference(plan: QueuePlan, subject: str, reason: str) -> Finding:
    if plan.dialect == "rodan":
        text = "it is not as Rodan declares it, so Rodan's own declaration fails: %s" % reason
        return Finding(FindingLevel.ERROR, subject, text, "delete it when it is empty; it is created again")
    return Finding(
        FindingLevel.WARNING,
        subject,
        "it is used as it is, not as the gateway would create it: %s" % reason,
        "if a policy of the broker makes it durable and sets its dead letters, all is well",
    )


def _check_exchange(probe: _Probe, exchange: str) -> Finding:
    subject = "exchange %s" % exchange
    end = probe.ask(lambda channel, done: channel.declare_exchange(exchange, done, passive=True))
    if end is None:
        return Finding(FindingLevel.OK, subject, "it exists")
    if end.code == _NOT_FOUND:
        return Finding(FindingLevel.OK, subject, "it does not exist; the gateway creates it, if it may")
    return Finding(FindingLevel.ERROR, subject, "progress cannot be published: %s" % end.reason)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Probe:
    """A connection for one question after the other; each waits for its reply."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raises BadInput if the files that the settings name cannot be used."""
        self._loop = EventLoop()
        self._reason = ""
        self._has_ended = False
        self._connection = AmqpConnection(
            self._loop,
            settings,
            read_broker_credentials(settings.credentials),
            name="outlast gateway: check",
            largest_body=0,
            on_open=self._loop.stop,
            on_end=self._ended,
            on_blocked=lambda _: self._loop.stop(),
        )
        self._patience = max(_PATIENCE, settings.connect_timeout + 1.0)

    @property
    def version(self) -> str:
        return self._connection.version

    @property
    def blocked(self) -> str:
        return self._connection.blocked

    def connect(self) -> str:
        """Wait for the connection; return why there is none, or nothing."""
        self._wait(lambda: self._has_ended or self._connection.is_open)
        return self._reason or ("" if self._connection.is_open else "no reply")

    def ask(self, question: Callable[[AmqpChannel, Callable[[], None]], None]) -> ChannelEnd | None:
        """Ask on a channel of its own; return the broker's refusal, or None if it has none."""
        if self._has_ended or not self._connection.is_open:
            return ChannelEnd(0, self._reason or "the connection ended")
        ends: list[ChannelEnd | None] = []

        def finish(end: ChannelEnd | None) -> None:
            ends.append(end)
            self._loop.stop()

        channel = self._connection.open_channel(
            lambda channel: question(channel, lambda: finish(None)),
            finish,
        )
        self._wait(lambda: bool(ends) or self._has_ended or bool(self.blocked))
        channel.close()
        return ends[0] if ends else ChannelEnd(0, self._reason or "no reply")

    def close(self) -> None:
        """End the connection and free the loop."""
        if not self._has_ended:
            self._connection.close()
        if not self.blocked:
            self._wait(lambda: self._has_ended)
        self._loop.close()

    def _wait(self, finished: Callable[[], bool]) -> None:
        end = time.monotonic() + self._patience
        while not finished() and (left := end - time.monotonic()) > 0:
            cancel = self._loop.call_later(left, self._loop.stop)
            self._loop.run()
            cancel()

    def _ended(self, reason: str) -> None:
        self._has_ended, self._reason = True, reason
        self._loop.stop()
