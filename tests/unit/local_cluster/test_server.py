"""The daemon's server: slow, idle and too many clients."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.local_cluster import daemon_main
from outlast.local_cluster import server as server_module
from outlast.local_cluster.messages import decode, encode, socket_address
from outlast.local_cluster.server import ClientConnection, SocketServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SocketServer]:
    def echo(message: dict[str, Any], _connection: ClientConnection) -> dict[str, Any] | None:
        return None if message.get("later") else message

    made = SocketServer(tmp_path, selectors.DefaultSelector(), echo)
    yield made
    made.close_listener()
    for connection in list(made.connections):
        made.close(connection)


def connect(server: SocketServer) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(server.directory) as address:
        sock.connect(address)
    return sock


def run_loop(server: SocketServer) -> None:
    """Handle all events that are ready."""
    while ready := server.selector.select(0):
        for key, events in ready:
            key.data(events)


def test_an_idle_client_is_closed_when_its_time_is_up_and_not_before(server: SocketServer) -> None:
    with connect(server) as sock:
        run_loop(server)
        (connection,) = server.connections
        assert server.next_expiry() == connection.expires
        server.close_expired()
        assert connection.is_open
        connection.expires = 0.0
        server.close_expired()
        assert sock.recv(10) == b""
    assert not server.connections


def test_a_client_that_waits_for_a_reply_is_not_idle(server: SocketServer) -> None:
    with connect(server) as sock:
        sock.sendall(encode({"later": True}))
        run_loop(server)
        (connection,) = server.connections
        assert server.next_expiry() is None
        server.close_expired()
        server.reply(connection, {"now": True})
        assert decode(sock.recv(1000)) == {"now": True}


def test_when_there_are_too_many_clients_the_longest_idle_one_is_closed(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    clients = []
    for _ in range(3):
        clients.append(connect(server))
        run_loop(server)
    assert clients[0].recv(10) == b""
    clients[2].sendall(encode({"still": "served"}))
    run_loop(server)
    assert decode(clients[2].recv(1000)) == {"still": "served"}
    for client in clients:
        client.close()


def test_a_long_reply_is_sent_in_pieces_to_a_slow_reader(server: SocketServer) -> None:
    message = {"text": "x" * 3_000_000}
    with connect(server) as sock:
        sock.setblocking(False)
        data = encode(message)
        received = bytearray()
        while decode(received) is None:
            if data:
                with contextlib.suppress(BlockingIOError):  # the server has not read it yet
                    data = data[sock.send(data) :]
            run_loop(server)
            try:
                received += sock.recv(1000_000)
            except BlockingIOError:
                continue  # nothing there yet
        assert decode(received) == message


def test_a_client_that_left_before_its_reply_does_no_harm(server: SocketServer) -> None:
    sock = connect(server)
    sock.sendall(encode({"hello": 1}))
    sock.close()
    run_loop(server)
    assert not server.connections


def test_clients_in_the_backlog_are_served_when_the_listener_closes(server: SocketServer) -> None:
    with connect(server) as sock:
        sock.sendall(encode({"hello": 1}))
        server.close_listener()
        assert not (server.directory / "socket").exists()
        run_loop(server)
        assert decode(sock.recv(1000)) == {"hello": 1}


def test_the_socket_of_another_daemon_is_not_removed(server: SocketServer) -> None:
    path = server.directory / "socket"
    path.rename(server.directory / "old")
    path.write_text("another one's")
    assert not server.is_reachable
    server.close_listener()
    assert path.exists()


def test_the_daemons_log_is_bounded(tmp_path: Path) -> None:
    code = "from pathlib import Path; from outlast.local_cluster.daemon_main import _redirect; "
    code += "log = _redirect(Path(%r)); [log('x' * 1000) for _ in range(5000)]" % str(tmp_path / "daemon.log")
    subprocess.run([sys.executable, "-c", code], check=True)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"daemon.log", "daemon.log.1"}
    assert max(sizes.values()) < daemon_main.LOG_BYTES + 2000
