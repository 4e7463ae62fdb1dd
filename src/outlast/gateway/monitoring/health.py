"""Serves `/metrics` and `/healthz` on a Unix socket, and on a loopback port with a token.

One thread, a few connections at once, each bounded in time and in bytes. Every response ends its connection.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import select
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from http.client import responses
from pathlib import Path

from outlast.errors import BadInput, NotWritable
from outlast.filesystem import describe_error
from outlast.gateway.configuration.private_files import private_file_mistake
from outlast.gateway.monitoring.metrics import GatewayState, render_metrics, unhealthy_reasons
from outlast.text import printable
from outlast.untrusted_files import read_file

_log = logging.getLogger(__name__)

#: Connections at once, seconds of each, and bytes of a request.
MOST_CONNECTIONS = 16
PATIENCE = 5.0
MOST_REQUEST = 8192
_MOST_TOKEN = 4096
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer:
    """Serves the state that `snapshot` returns; it is called in the server's thread.

    The socket belongs to this user alone (mode 600). With `port`, the server listens on 127.0.0.1, too, for
    requests with the bearer token in `token_file`, which must have mode 600. Port 0: none.
    """

    def __init__(
        self,
        socket_path: Path,
        port: int,
        token_file: Path | None,
        snapshot: Callable[[], GatewayState],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._socket_path = socket_path
        self._port = port
        self._token_file = token_file
        self._snapshot = snapshot
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, _Served] = {}
        self._listeners: dict[socket.socket, bool] = {}
        self._wake_reader = self._wake_writer = -1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, and serve in a thread. Raise BadInput (no token for the port), NotWritable."""
        if self._port and self._token_file is None:
            raise BadInput("metrics.port needs metrics.token: a file of mode 600 with a token")
        if self._port and self._token_file is not None:
            mistake, hint = private_file_mistake(self._token_file)
            if mistake:
                raise BadInput("%s; %s" % (mistake, hint))
        self._wake_reader, self._wake_writer = os.pipe()
        try:
            self._listeners[_listen_on_path(self._socket_path)] = False
            if self._port:
                self._listeners[socket.create_server(("127.0.0.1", self._port), backlog=16)] = True
        except OSError as error:
            self._close()
            raise NotWritable("no metrics and no health check: %s" % describe_error(error)) from error
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the socket."""
        if self._thread is not None:
            os.write(self._wake_writer, b"x")
            self._thread.join(PATIENCE)
            self._thread = None
            with contextlib.suppress(OSError):  # somebody has removed it
                self._socket_path.unlink()

    def _run(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select(1.0 if self._connections else None):
                    if key.fd == self._wake_reader:
                        return
                    self._handle(key.fileobj)  # type: ignore[arg-type]
                self._drop_slow()
        finally:
            self._close()

    def _handle(self, ready: socket.socket) -> None:
        if ready in self._listeners:
            self._accept(ready, self._listeners[ready])
            return
        served = self._connections[ready]
        try:
            if served.advance(self._respond):
                self._drop(ready)
            else:
                self._selector.modify(ready, served.events)
        except OSError:  # the client is gone
            self._drop(ready)

    def _accept(self, listener: socket.socket, needs_token: bool) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            # The client is gone, or there are no descriptors: that would be tried again without a pause.
            select.select([self._wake_reader], [], [], 0.1)
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        self._connections[connection] = _Served(connection, needs_token, time.monotonic() + PATIENCE)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop_slow(self) -> None:
        now = time.monotonic()
        for connection, served in list(self._connections.items()):
            if now >= served.deadline:
                self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._connections[connection]
        connection.close()

    def _close(self) -> None:
        for one in (*self._listeners, *self._connections):
            one.close()
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    # What is answered

    def _respond(self, head: bytes, needs_token: bool) -> bytes:
        """Return the response to a request's head."""
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if needs_token and not self._has_token(head):
            return _response(401, "a bearer token is required\n", "WWW-Authenticate: Bearer\r\n")
        if method not in (b"GET", b"HEAD"):
            return _response(405, "GET only\n", "Allow: GET, HEAD\r\n")
        if path not in (b"/metrics", b"/healthz"):
            return _response(404, "there are /metrics and /healthz\n")
        try:
            state, now = self._snapshot(), self._clock()
        except Exception as error:
            # The thread must outlive whatever is wrong with the gateway: that is what it reports.
            _log.exception("the state for a health check could not be had")
            text = "no state: %s" % type(error).__name__
            return _response(503, json.dumps({"healthy": False, "reasons": [text]}) + "\n", json_body=True)
        if path == b"/metrics":
            return _response(200, render_metrics(state, now), with_body=method == b"GET")
        reasons = [printable(reason) for reason in unhealthy_reasons(state, now)]
        body = json.dumps({"healthy": not reasons, "reasons": reasons, "draining": state.draining}) + "\n"
        return _response(503 if reasons else 200, body, json_body=True, with_body=method == b"GET")

    def _has_token(self, head: bytes) -> bool:
        """Compare in constant time; the file is read each time, so that it can be changed."""
        assert self._token_file is not None
        mistake, _ = private_file_mistake(self._token_file)
        if mistake:
            _log.warning("nobody is let in to the metrics: %s", mistake)
            return False
        try:
            token = read_file(self._token_file, _MOST_TOKEN).strip()
        except OSError as error:
            _log.warning("nobody is let in to the metrics: %s", describe_error(error))
            return False
        given = b""
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                given = value.strip()
        return bool(token) and hmac.compare_digest(given, b"Bearer " + token)


class _Served:
    """One connection: its request is read, then its response is written."""

    def __init__(self, connection: socket.socket, needs_token: bool, deadline: float) -> None:
        self._connection = connection
        self._needs_token = needs_token
        self.deadline = deadline
        self.events = selectors.EVENT_READ
        self._request = b""
        self._response = b""

    def advance(self, respond: Callable[[bytes, bool], bytes]) -> bool:
        """Read or write what can be now; return True if the connection is done. Raise OSError."""
        if self.events == selectors.EVENT_READ:
            received = self._connection.recv(MOST_REQUEST - len(self._request))
            self._request += received
            head, end, _ = self._request.partition(b"\r\n\r\n")
            if end:
                self._response = respond(head, self._needs_token)
            elif len(self._request) >= MOST_REQUEST:
                self._response = _response(431, "the request is too long\n")
            else:
                return not received
            self.events = selectors.EVENT_WRITE
            return False
        self._response = self._response[self._connection.send(self._response) :]
        return not self._response


def _response(
    status: int, body: str, headers: str = "", *, json_body: bool = False, with_body: bool = True
) -> bytes:
    encoded = body.encode("utf-8", "backslashreplace")
    head = "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n" % (
        status,
        responses[status],
        "application/json" if json_body else _TEXT,
        len(encoded),
        headers,
    )
    return head.encode() + (encoded if with_body else b"")


def _listen_on_path(path: Path) -> socket.socket:
    """Listen on a Unix socket of mode 600, in place of one that an earlier process left. Raise OSError.

    The directory is named by a descriptor: the path of a socket has at most 107 bytes.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(path.name, dir_fd=folder)
        short = "/proc/self/fd/%d/%s" % (folder, path.name)
        listener.bind(short)
        # Nobody can connect before `listen`.
        os.chmod(path.name, 0o600, dir_fd=folder)
        listener.listen(16)
        return listener
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
