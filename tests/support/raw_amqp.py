"""Publish messages whose properties are any bytes at all: client libraries cannot write an attacker's."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

from support.broker import PASSWORD, USER, Broker

#: The bits of the properties.
CONTENT_TYPE, HEADERS, CORRELATION_ID, REPLY_TO, TIMESTAMP = 1 << 15, 1 << 13, 1 << 10, 1 << 9, 1 << 6


class RawPublisher:
    """A connection with one channel, without a library."""

    def __init__(self, broker: Broker) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(10, 10)
        login = b"\0%s\0%s" % (USER.encode(), PASSWORD.encode())
        self._method(0, 10, 11, table(b"") + text(b"PLAIN") + long_text(login) + text(b"en_US"))
        tune = self._expect(10, 30)
        self._method(0, 10, 31, tune[:6] + b"\0\0")  # its limits, and no heartbeats
        self._method(0, 10, 40, text(broker.virtual_host.encode()) + b"\0\0")
        self._expect(10, 41)
        self._method(1, 20, 10, b"\0")
        self._expect(20, 11)
        self._method(1, 85, 10, b"\0")
        self._expect(85, 11)
        self._published = 0

    def publish(self, queue: str, properties: bytes, body: bytes = b"{}") -> None:
        """Publish to a queue. `properties` are the flags, in two bytes, and the values that they announce."""
        self._method(1, 60, 40, b"\0\0" + text(b"") + text(queue.encode()) + b"\0")
        self._frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        if body:
            self._frame(3, 1, body)
        self._published += 1

    def _wait_for_confirms(self) -> None:
        """Wait until the queues have everything that was published."""
        missing = set(range(1, self._published + 1))
        while missing:
            confirm = self._expect(60, 80)
            number, multiple = struct.unpack(">QB", confirm[:9])
            missing -= set(range(1, number + 1)) if multiple else {number}

    def close(self) -> None:
        """Close the channel: the queues have everything. Raises AssertionError if something was refused."""
        self._wait_for_confirms()
        self._method(1, 20, 40, struct.pack(">H", 200) + text(b"") + b"\0\0\0\0")
        self._expect(20, 41)
        self._socket.close()

    def __enter__(self) -> RawPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        self._socket.close()

    def _method(self, channel: int, class_id: int, method: int, arguments: bytes) -> None:
        self._frame(1, channel, struct.pack(">HH", class_id, method) + arguments)

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        self._socket.sendall(struct.pack(">BHL", kind, channel, len(payload)) + payload + b"\xce")

    def _expect(self, class_id: int, method: int) -> bytes:
        kind, _channel, size = struct.unpack(">BHL", self._file.read(7))
        payload = self._file.read(size + 1)[:-1]
        assert kind == 1 and struct.unpack_from(">HH", payload) == (class_id, method), payload[:200]
        return payload[4:]


def text(value: bytes) -> bytes:
    """Return a text of at most 255 bytes."""
    return bytes([len(value)]) + value


def long_text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def table(entries: bytes) -> bytes:
    """Return a table of these encoded entries."""
    return long_text(entries)


def entry(key: bytes, kind: bytes, value: bytes) -> bytes:
    return text(key) + kind + value


def nested(depth: int) -> bytes:
    """Return the entries of a table in a table in a table."""
    # From the inside out; joined once, because adding bytes so often takes quadratic time.
    sizes = [7 * level for level in range(depth)]
    return b"".join(b"\1aF" + struct.pack(">I", size) for size in reversed(sizes))


def properties(flags: int, *values: bytes) -> bytes:
    return struct.pack(">H", flags) + b"".join(values)
