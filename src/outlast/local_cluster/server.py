"""The daemon's socket: many connections in one thread, none of which can block another."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast.local_cluster.messages import SOCKET_NAME, BadMessage, decode, encode, socket_address

#: A client must send its request, or receive the reply, within this time.
CLIENT_SECONDS = 30.0
MOST_CONNECTIONS = 512
_CHUNK = 1024 * 1024


class ClientConnection:
    """One client and the state of its request."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.received = bytearray()
        self.to_send = memoryview(b"")
        #: When it is closed for being idle (monotonic clock); None while the client waits for a reply.
        self.expires: float | None = time.monotonic() + CLIENT_SECONDS
        self.is_open = True


class SocketServer:
    """`handle(message, connection)` returns the reply, or None if `reply` will be called later."""

    def __init__(
        self,
        directory: Path,
        selector: selectors.BaseSelector,
        handle: Callable[[dict[str, Any], ClientConnection], dict[str, Any] | None],
    ) -> None:
        self.directory = directory
        self.selector = selector
        self.handle = handle
        self.connections: set[ClientConnection] = set()
        self.listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Create the socket and listen. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = self.directory / SOCKET_NAME
        path.unlink(missing_ok=True)
        before = os.umask(0o177)  # the socket must never exist with a wider mode
        try:
            with socket_address(self.directory) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(128)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.listener = listener
        self._inode = path.stat().st_ino

    @property
    def is_reachable(self) -> bool:
        """Return True if the socket in the directory is still the one of this server."""
        try:
            return (self.directory / SOCKET_NAME).stat().st_ino == self._inode
        except OSError:
            return False

    def close_listener(self) -> None:
        """Stop listening, after accepting the clients that are already in the backlog."""
        if self.listener is None:
            return
        if self.is_reachable:
            (self.directory / SOCKET_NAME).unlink(missing_ok=True)
        self._accept(selectors.EVENT_READ)
        self.selector.unregister(self.listener)
        self.listener.close()
        self.listener = None

    def _accept(self, _events: int) -> None:
        while self.listener is not None:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError:
                return  # the client has left, or there are too many open files: retried in the next round
            sock.setblocking(False)
            connection = ClientConnection(sock)
            self.connections.add(connection)
            self.selector.register(
                sock, selectors.EVENT_READ, lambda events, c=connection: self._ready(c, events)
            )
            if len(self.connections) > MOST_CONNECTIONS:
                waiting = [c for c in self.connections if c.expires is not None]
                self.close(min(waiting or self.connections, key=lambda c: c.expires or 0.0))

    def _ready(self, connection: ClientConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(connection)
            elif events & selectors.EVENT_READ:
                self._receive(connection)
        except BlockingIOError:
            return
        except OSError:
            self.close(connection)  # the client is gone; its request stays done

    def _receive(self, connection: ClientConnection) -> None:
        data = connection.socket.recv(_CHUNK)
        if not data or connection.expires is None:
            self.close(connection)  # gone, half-way or while waiting; or talking out of turn
            return
        connection.received += data
        try:
            message = decode(connection.received)
        except BadMessage as error:
            self.reply(connection, {"error": str(error)})
            return
        if message is not None:
            connection.received = bytearray()
            connection.expires = None
            reply = self.handle(message, connection)
            if reply is not None:
                self.reply(connection, reply)

    def reply(self, connection: ClientConnection, message: dict[str, Any]) -> None:
        """Send a reply, then close the connection."""
        if not connection.is_open:
            return
        try:
            connection.to_send = memoryview(encode(message))
        except BadMessage as error:
            connection.to_send = memoryview(encode({"error": "the reply is too long: %s" % error}))
        connection.expires = time.monotonic() + CLIENT_SECONDS
        self._ready(connection, selectors.EVENT_WRITE)

    def _send(self, connection: ClientConnection) -> None:
        try:
            sent = connection.socket.send(connection.to_send)
        except BlockingIOError:
            sent = 0
        connection.to_send = connection.to_send[sent:]
        if not connection.to_send:
            self.close(connection)
            return
        key = self.selector.get_key(connection.socket)
        self.selector.modify(connection.socket, selectors.EVENT_WRITE, key.data)

    def close(self, connection: ClientConnection) -> None:
        if connection.is_open:
            connection.is_open = False
            self.connections.discard(connection)
            self.selector.unregister(connection.socket)
            connection.socket.close()

    def close_expired(self) -> None:
        """Close the connections whose time is up."""
        now = time.monotonic()
        for connection in list(self.connections):
            if connection.expires is not None and connection.expires < now:
                self.close(connection)

    def next_expiry(self) -> float | None:
        """Return when the next connection expires (monotonic), or None."""
        return min((c.expires for c in self.connections if c.expires is not None), default=None)
