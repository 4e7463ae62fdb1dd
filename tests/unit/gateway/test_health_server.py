"""Metrics and the health check: on a socket for the owner, on a port with a token, and for nobody else."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.errors import BadInput, NotWritable
from outlast.gateway.monitoring import health
from outlast.gateway.monitoring.health import MOST_CONNECTIONS, MOST_REQUEST, HealthServer
from outlast.gateway.monitoring.metrics import GatewayState, render_metrics, unhealthy_reasons

NOW = 1_800_000_000.0
WELL = GatewayState(
    version="1.0",
    started=NOW - 1000,
    requests={("running", "pages"): 3, ("accepted", 'odd"\\\n'): 1},
    answers={("pages", "finished"): 7, ("pages", "out_of_memory"): 1},
    publications={"confirmed": 8},
    broker_up_since=NOW - 600,
    broker_up_seconds=300.0,
    broker_down_seconds=100.0,
    passes=12345,
    last_pass=NOW - 1,
)
TIMEOUT = 30.0


class Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = dial(self._path)


def dial(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        connection.connect("/proc/self/fd/%d/%s" % (folder, path.name))
    finally:
        os.close(folder)
    # Not before: with a timeout, connecting to a server with many waiting fails at once.
    connection.settimeout(TIMEOUT)
    return connection


def get(
    connection: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str
) -> tuple[int, str]:
    with closing(connection):
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


@contextmanager
def serving(
    path: Path, state: GatewayState = WELL, port: int = 0, token: Path | None = None
) -> Iterator[None]:
    server = HealthServer(path, port, token, lambda: state, clock=lambda: NOW)
    server.start()
    try:
        yield
    finally:
        server.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # Longer than the path of a socket may be.
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory / "health.sock"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "metrics.token"
    file.write_text("s3cr3t-of-the-scraper\n")
    file.chmod(0o600)
    return file


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


# The state


def test_metrics_are_in_prometheus_format() -> None:
    text = render_metrics(WELL, NOW)
    for line in (
        'outlast_gateway_requests{state="running",template="pages"} 3',
        'outlast_gateway_requests{state="accepted",template="odd\\"\\\\\\n"} 1',
        'outlast_gateway_answers_total{template="pages",code="out_of_memory"} 1',
        "outlast_gateway_broker_up 1",
        "outlast_gateway_broker_up_seconds_total 900",
        "outlast_gateway_broker_down_seconds_total 100",
        "outlast_gateway_last_pass_age_seconds 1",
        "# TYPE outlast_gateway_passes_total counter",
        "outlast_gateway_healthy 1",
    ):
        assert line in text.splitlines()
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"broker_up_since": None, "broker_down_since": NOW - 31, "broker_reason": "refused"}, "refused"),
        ({"last_pass": NOW - 121}, "pass"),
        ({"last_pass": None}, "pass"),
        ({"outbox": 1, "outbox_oldest": NOW - 901}, "confirm"),
        ({"problems": ("the disk is full",)}, "disk"),
    ],
)
def test_what_stands_still_is_not_healthy(change: dict[str, object], reason: str) -> None:
    assert unhealthy_reasons(WELL, NOW) == []
    (found,) = unhealthy_reasons(replace(WELL, **change), NOW)  # type: ignore[arg-type]
    assert reason in found


def test_a_broker_that_is_away_for_seconds_is_no_illness() -> None:
    state = replace(WELL, broker_up_since=None, broker_down_since=NOW - 29)
    assert unhealthy_reasons(state, NOW) == []


# The socket


def test_the_socket_is_for_its_owner_only(path: Path) -> None:
    old = os.umask(0)
    try:
        with serving(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(old)
    assert not path.exists()


def test_metrics_and_health_are_served(path: Path) -> None:
    with serving(path):
        status, text = get(Connection(path), "/metrics")
        assert (status, text) == (200, render_metrics(WELL, NOW))
        status, text = get(Connection(path), "/healthz")
        assert status == 200 and json.loads(text)["healthy"] is True


def test_an_ill_gateway_is_503_with_reasons(path: Path) -> None:
    with serving(path, replace(WELL, problems=("the disk is full\x1b[2J",))):
        status, text = get(Connection(path), "/healthz")
        assert status == 503
        assert "\x1b" not in json.loads(text)["reasons"][0]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/metrics", 405),
        ("GET", "/", 404),
        ("GET", "/../healthz", 404),
        ("GET", "/healthz?x=1", 200),
        ("HEAD", "/metrics", 200),
    ],
)
def test_only_two_pages_are_served(path: Path, method: str, target: str, status: int) -> None:
    with serving(path):
        assert get(Connection(path), target, method)[0] == status


def test_an_error_of_the_gateway_is_an_answer_and_not_the_end(path: Path) -> None:
    def fail() -> GatewayState:
        raise RuntimeError("secret detail")

    server = HealthServer(path, 0, None, fail)
    server.start()
    try:
        for _ in range(2):
            status, text = get(Connection(path), "/healthz")
            assert status == 503 and "RuntimeError" in text and "secret" not in text
    finally:
        server.stop()


def test_a_socket_that_a_killed_process_left_is_replaced(path: Path) -> None:
    left = health._listen_on_path(path)
    left.close()
    assert path.exists()
    with serving(path):
        assert get(Connection(path), "/healthz")[0] == 200


def test_a_file_in_place_of_the_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(NotWritable):
        HealthServer(path, 0, None, lambda: WELL).start()
    assert path.read_text() == "precious"


# The port


def test_the_port_needs_the_token(path: Path, token: Path) -> None:
    port = free_port()
    with serving(path, port=port, token=token):
        for headers, expected in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "s3cr3t-of-the-scraper"}, 401),
            ({"Authorization": "Bearer "}, 401),
            ({"Authorization": "Bearer s3cr3t-of-the-scraper"}, 200),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
            assert get(connection, "/metrics", **headers)[0] == expected
        assert get(Connection(path), "/metrics")[0] == 200
        token.chmod(0o644)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        assert get(connection, "/metrics", Authorization="Bearer s3cr3t-of-the-scraper")[0] == 401


def test_an_empty_token_lets_nobody_in(path: Path, token: Path) -> None:
    token.write_text("\n")
    port = free_port()
    with serving(path, port=port, token=token):
        for value in ("Bearer ", "Bearer"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
            assert get(connection, "/metrics", Authorization=value)[0] == 401


def test_a_port_without_a_token_or_with_a_readable_one_is_refused(path: Path, token: Path) -> None:
    with pytest.raises(BadInput):
        HealthServer(path, 9, None, lambda: WELL).start()
    token.chmod(0o640)
    with pytest.raises(BadInput) as raised:
        HealthServer(path, 9, token, lambda: WELL).start()
    assert "chmod 600" in str(raised.value) and "s3cr3t" not in str(raised.value)


def test_a_port_that_is_taken_is_refused(path: Path, token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(NotWritable):
        HealthServer(path, taken.getsockname()[1], token, lambda: WELL).start()


# Clients that mean no good


def test_a_long_request_is_refused(path: Path) -> None:
    with serving(path), closing(dial(path)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * (MOST_REQUEST - 26))
        assert connection.recv(100).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "request_", [b"\r\n\r\n", b"\xff\x00\x1b \r\n\r\n", b"GET\r\n\r\n", b"GET  \r\n\r\n"]
)
def test_nonsense_is_answered(path: Path, request_: bytes) -> None:
    with serving(path), closing(dial(path)) as connection:
        connection.sendall(request_)
        assert connection.recv(100).startswith(b"HTTP/1.1 40")
        assert get(Connection(path), "/healthz")[0] == 200


def test_silent_clients_are_dropped_and_do_not_keep_others_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.2)
    with serving(path):
        silent = [dial(path) for _ in range(MOST_CONNECTIONS)]
        for connection in silent:
            with closing(connection):
                assert connection.recv(1) == b""
        assert get(Connection(path), "/healthz")[0] == 200


def test_the_number_of_connections_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", 1000.0)
    with serving(path):
        silent = [dial(path) for _ in range(MOST_CONNECTIONS)]
        with closing(dial(path)) as one_more:
            assert one_more.recv(1) == b""
        for connection in silent:
            connection.close()


def test_clients_that_leave_do_not_end_the_server(path: Path) -> None:
    with serving(path):
        for _ in range(50):
            with closing(dial(path)) as connection:
                connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(50):
            dial(path).close()
        assert get(Connection(path), "/healthz")[0] == 200


def test_the_thread_ends_with_the_server(path: Path) -> None:
    before = set(threading.enumerate())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with serving(path):
        assert set(threading.enumerate()) != before
    assert set(threading.enumerate()) == before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
