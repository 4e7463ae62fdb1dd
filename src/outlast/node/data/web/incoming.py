"""What arrives over a connection: lines first, then bytes into the caller's own buffers."""

from __future__ import annotations

import time

from outlast.node.data.web.connection import Connection

_PIECE = 16 * 1024


class TooLong(Exception):
    """More bytes without an end of the line, or of the headers, than there may be."""


class Ended(Exception):
    """The connection ended inside a line; `empty`: before the first byte of it."""

    def __init__(self, empty: bool) -> None:
        super().__init__("the connection ended")
        self.empty = empty


class Incoming:
    """Everything raises OSError, and socket.timeout when nothing comes in time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._rest = b""

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        """0: the connection ended."""
        if self._rest:
            count = min(len(self._rest), len(buffer))
            buffer[:count] = self._rest[:count]
            self._rest = self._rest[count:]
            return count
        return self.connection.receive_into(buffer, seconds)

    def read_line(self, limit: int, deadline: float) -> bytes:
        """Without its end. Raises TooLong, Ended."""
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if len(line) > limit:
                raise TooLong
            if found:
                self._rest = rest
                return line.rstrip(b"\r")
            piece = memoryview(bytearray(_PIECE))
            count = self.connection.receive_into(piece, max(0.001, deadline - time.monotonic()))
            if count == 0:
                raise Ended(empty=not self._rest)
            self._rest += piece[:count]

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)
