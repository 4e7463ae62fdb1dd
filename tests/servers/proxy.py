"""A proxy on loopback that tunnels (CONNECT), forwards plain requests, and records all requests."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from servers.wire import PATIENCE


@dataclass(frozen=True)
class ProxyRequest:
    """A request to the proxy."""

    #: The first line of the request, such as "CONNECT localhost:443 HTTP/1.1".
    line: str
    head: str


class Proxy:
    """A proxy for one connection at a time. `refuses`: a status with which it rejects every request."""

    def __init__(self, refuses: int = 0) -> None:
        self.requests: list[ProxyRequest] = []
        self._refuses = refuses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ending = threading.Event()

    @property
    def address(self) -> str:
        return "127.0.0.1:%d" % self._listener.getsockname()[1]

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        with contextlib.suppress(OSError):  # no thread was waiting in accept
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the proxy did not end"

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            # Either side may disconnect at any time.
            with client, contextlib.suppress(OSError):
                client.settimeout(PATIENCE)
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            piece = client.recv(65536)
            if not piece:
                return
            received += piece
        head = received.decode("latin-1")
        line = head.split("\r\n", 1)[0]
        self.requests.append(ProxyRequest(line, head))
        method, target, _ = line.split(" ")
        if self._refuses:
            client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self._refuses)
            return
        parts = urlsplit("//" + target if method == "CONNECT" else target)
        with socket.create_connection((parts.hostname or "", parts.port or 80), PATIENCE) as server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                server.sendall(head.replace(target, parts.path, 1).encode("latin-1"))
            self._relay(client, server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while not self._ending.is_set():
                for key, _ in selector.select(0.1):
                    piece = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not piece:
                        return
                    key.data.sendall(piece)
