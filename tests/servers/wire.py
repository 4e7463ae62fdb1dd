"""Requests and connections, for a server that may break them deliberately."""

from __future__ import annotations

import fcntl
import re
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import responses

from servers.behaviour import Behaviour

#: Timeout in seconds of one connection; only tests that fail reach it.
PATIENCE = 30.0
_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@dataclass
class Request:
    """A request that the server has received."""

    method: str
    path: str  # with its query
    headers: dict[str, str]  # names in lower case
    start: int = 0
    stop: int | None = None  # None: to the end
    behaviour: Behaviour = field(default_factory=Behaviour)
    #: Bytes of the body that were sent.
    sent: int = 0
    #: The body that was received with it, as far as it came.
    body: bytes = b""

    @property
    def keeps_connection(self) -> bool:
        return "close" not in self.headers.get("connection", "").lower()


class Done(Exception):
    """The server is finished with this connection."""


class Wire:
    """A connection, seen from the server. `plain` is its socket below TLS."""

    def __init__(self, connection: socket.socket, plain: socket.socket, ending: threading.Event) -> None:
        self._connection = connection
        self._plain = plain
        self._ending = ending
        self._received = b""

    def read_request(self) -> Request | None:
        """Read the next request; None if the client has closed the connection."""
        while b"\r\n\r\n" not in self._received:
            more = self._connection.recv(65536)
            if not more:
                return None
            self._received += more
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        request = Request(method, path, {name.strip().lower(): value.strip() for name, _, value in pairs})
        found = _RANGE.match(request.headers.get("range", ""))
        if found and found.group(1):
            request.start = int(found.group(1))
            request.stop = int(found.group(2)) + 1 if found.group(2) else None
        return request

    def read_body(self, request: Request) -> bool:
        """Read the request's body, of its Content-Length; return False if the client left before its end."""
        length = int(request.headers.get("content-length", "0"))
        pieces, missing = [self._received[:length]], length - len(self._received[:length])
        self._received = self._received[length:]
        while missing:
            piece = self._connection.recv(min(65536, missing))
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        request.body = b"".join(pieces)
        return missing == 0

    def send_head(self, status: int, do: Behaviour, headers: Mapping[str, str]) -> None:
        merged = {**headers, **dict(do.headers)}
        if do.server:
            merged.setdefault("Server", do.server)
        lines = ["HTTP/1.1 %d %s" % (status, responses.get(status, "Odd"))]
        lines += ["%s: %s" % pair for pair in merged.items()]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def send_some(self, data: memoryview) -> int:
        return self._connection.send(data)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Done if the server is stopped meanwhile."""
        if self._ending.wait(seconds):
            raise Done

    def wait_for_disconnect(self) -> None:
        """Send nothing until the client disconnects or the test is over. Always raises Done."""
        deadline = time.monotonic() + PATIENCE
        poller = select.poll()
        poller.register(self._plain, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self._ending.is_set() and time.monotonic() < deadline and not poller.poll(100):
            pass
        raise Done

    def reset(self) -> None:
        """Send RST once the peer's kernel has all bytes, else some would be lost at random. Raises Done."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not self._ending.is_set():
            waiting = fcntl.ioctl(self._plain, termios.TIOCOUTQ, b"\0" * 4)
            if struct.unpack("i", waiting)[0] == 0:
                break
            time.sleep(0.001)  # the kernel has no event for an empty queue
        self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Done
