"""The format of requests and replies: four bytes of length, then JSON. One request per connection."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Both sides must use the same version; the daemon refuses other requests.
PROTOCOL = 1
LARGEST = 64 * 1024 * 1024
_HEADER = struct.Struct(">I")

SOCKET_NAME = "socket"


class BadMessage(ValueError):
    """The bytes are not a valid message."""


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as bytes. Raises BadMessage if it is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > LARGEST:
        raise BadMessage("a message of %d bytes is longer than the %d allowed" % (len(body), LARGEST))
    return _HEADER.pack(len(body)) + body


def decode(data: bytes | bytearray) -> dict[str, Any] | None:
    """Return the message, or None while bytes are missing. Raises BadMessage."""
    if len(data) < _HEADER.size:
        return None
    (length,) = _HEADER.unpack_from(data)
    if length > LARGEST:
        raise BadMessage("a message of %d bytes is longer than the %d allowed" % (length, LARGEST))
    if len(data) < _HEADER.size + length:
        return None
    try:
        message = json.loads(bytes(data[_HEADER.size : _HEADER.size + length]))
    except (ValueError, RecursionError) as error:
        raise BadMessage("not JSON: %s" % error) from error
    if not isinstance(message, dict):
        raise BadMessage("a message must be a JSON object, not a %s" % type(message).__name__)
    return message


@contextmanager
def socket_address(directory: Path) -> Iterator[str]:
    """Yield an address of the socket that fits the kernel's limit of 107 bytes, however long its path is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (descriptor, SOCKET_NAME)
    finally:
        os.close(descriptor)
