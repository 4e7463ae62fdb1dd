"""A filter between the socket and the AMQP library: the library decodes nothing that senders wrote.

The library would end the connection at a header table that it cannot decode; the message would come back and
end the next connection, too. So the properties of every message are decoded here, and the library receives a
content header with nothing but a serial number, by which they are found again. Of a body only the first
`largest_body` bytes are kept, so that a hundred messages of the broker's limit do not need gigabytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from outlast.gateway.broker.header_decoder import decode_properties
from outlast.gateway.requests import Properties

_FRAME = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")
_HEADER, _BODY, _END = 2, 3, 0xCE
#: Counts as a sign of life, and does nothing else.
_HEARTBEAT = _FRAME.pack(8, 0, 0) + bytes([_END])
#: The bit of the property that carries the serial number.
_MESSAGE_ID = 1 << 7


@dataclass(frozen=True)
class MessageContent:
    """The properties of a message, and the size of its whole body."""

    properties: Properties
    size: int


class FrameFilter:
    """Rewrites the frames of one connection. Not for several threads."""

    def __init__(self, largest_body: int) -> None:
        self._largest_body = largest_body
        self._buffer = bytearray()
        self._started = False
        self._raw = False
        self._serial = 0
        self._contents: dict[int, MessageContent] = {}
        #: By channel: how many bytes of the current body are still passed on, and still expected.
        self._bodies: dict[int, tuple[int, int]] = {}

    def feed(self, data: bytes) -> bytes:
        """Return what the library receives instead of `data`."""
        self._buffer += data
        if not self._started and len(self._buffer) >= 4:
            self._started = True
            # A server that does not speak this version answers with a protocol header, and no frames.
            self._raw = self._buffer.startswith(b"AMQP")
        if self._raw:
            passed = bytes(self._buffer)
            self._buffer.clear()
            return passed
        return self._frames() if self._started else b""

    def pop(self, serial: str | bytes | None) -> MessageContent:
        """Return what belongs to the serial number that the library received as the message id."""
        return self._contents.pop(int(serial or 0))

    def _frames(self) -> bytes:
        passed: list[bytes] = []
        offset, available = 0, len(self._buffer)
        while available - offset >= _FRAME.size:
            kind, channel, size = _FRAME.unpack_from(self._buffer, offset)
            end = offset + _FRAME.size + size + 1
            if end > available:
                break
            payload = bytes(self._buffer[offset + _FRAME.size : end - 1])
            if self._buffer[end - 1] != _END or kind not in (_HEADER, _BODY):
                passed.append(bytes(self._buffer[offset:end]))
            elif kind == _HEADER:
                passed.append(self._header(channel, payload))
            else:
                passed.append(self._body(channel, payload))
            offset = end
        del self._buffer[:offset]
        return b"".join(passed)

    def _header(self, channel: int, payload: bytes) -> bytes:
        class_id, weight, size = _CONTENT.unpack_from(payload)
        self._serial += 1
        self._contents[self._serial] = MessageContent(decode_properties(payload[_CONTENT.size :]), size)
        kept = min(size, self._largest_body)
        self._bodies[channel] = (kept, size)
        serial = b"%d" % self._serial
        flags = struct.pack(">HB", _MESSAGE_ID, len(serial))
        return _frame(_HEADER, channel, _CONTENT.pack(class_id, weight, kept) + flags + serial)

    def _body(self, channel: int, payload: bytes) -> bytes:
        kept, expected = self._bodies.get(channel, (len(payload), len(payload)))
        passed = payload[:kept]
        self._bodies[channel] = (kept - len(passed), expected - len(payload))
        return _frame(_BODY, channel, passed) if passed else _HEARTBEAT


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + bytes([_END])
