"""The client trusts no daemon but one of its own user, and waits for none without end."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.local_cluster.client import Client, DaemonOptions, NoResponse, NotSent
from outlast.local_cluster.messages import LARGEST, encode, socket_address
from outlast.schedulers.base import JobRequest, SchedulerUnavailable, SubmitStatus
from outlast.schedulers.local import LocalScheduler

Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def false_daemon(directory: Path, answer: Answer) -> Iterator[Client]:
    """Listen in the place of the daemon; call `answer` with each connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        with socket_address(directory) as address:
            server.bind(address)
        server.listen()
        thread = threading.Thread(target=_serve, args=(server, answer))
        thread.start()
        try:
            yield Client(directory, DaemonOptions())
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(server: socket.socket, answer: Answer) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return  # the test is over
        with connection, contextlib.suppress(OSError):
            answer(connection)


def reply_with(data: bytes) -> Answer:
    """Return a function that reads a request and sends this."""

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)

    return answer


def wait_for_end(connection: socket.socket) -> None:
    """Read until the client gives up."""
    while connection.recv(4096):
        pass


def test_nothing_is_sent_to_a_daemon_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []
    with false_daemon(tmp_path, lambda connection: received.append(connection.recv(1))) as client:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(NotSent, match="belongs to user %d" % os.getuid()):
            client.ask("jobs", 60.0)
    assert received == [b""]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_nothing_is_sent_to_a_socket_that_another_user_has_planted(tmp_path: Path) -> None:
    ready, done = os.pipe(), os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        with socket_address(tmp_path) as address:
            server.bind(address)
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(12345, 12345, 12345)
                server.listen()  # the kernel keeps the user of this call
                os.write(ready[1], b"x")
                os.close(done[1])
                os.read(done[0], 1)
            finally:
                os._exit(0)
    try:
        os.read(ready[0], 1)
        with pytest.raises(NotSent, match="belongs to user 12345"):
            Client(tmp_path, DaemonOptions()).ask("jobs", 60.0)
    finally:
        for descriptor in (*ready, *done):
            os.close(descriptor)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "reply", [b"\xff" * 100, b"\0\0\0\2[]", b"\0\0\0\4{{{{", b"\0\0\0\x09" + b'{"a": 1]}']
)
def test_garbage_is_no_response(tmp_path: Path, reply: bytes) -> None:
    with false_daemon(tmp_path, reply_with(reply)) as client, pytest.raises(NoResponse, match="invalid"):
        client.ask("jobs", 60.0)


def test_a_daemon_that_never_responds_is_given_up(tmp_path: Path) -> None:
    with (
        false_daemon(tmp_path, wait_for_end) as client,
        pytest.raises(NoResponse, match="not respond in time"),
    ):
        client.ask("jobs", 0.2)


def test_a_daemon_that_closes_every_connection_is_given_up(tmp_path: Path) -> None:
    with (
        false_daemon(tmp_path, reply_with(b"")) as client,
        pytest.raises(NoResponse, match="closed the conn"),
    ):
        client.ask("jobs", 60.0)


def test_the_reply_of_a_daemon_of_our_own_is_returned(tmp_path: Path) -> None:
    with false_daemon(tmp_path, reply_with(encode({"jobs": []}))) as client:
        assert client.ask("jobs", 60.0) == {"jobs": []}


def send_without_end(connection: socket.socket) -> None:
    """Announce the largest message and send it byte by byte, for ever."""
    connection.recv(65536)
    connection.sendall((LARGEST).to_bytes(4, "big"))
    while True:
        connection.sendall(b" ")


def test_a_daemon_whose_response_never_ends_is_given_up(tmp_path: Path) -> None:
    with (
        false_daemon(tmp_path, send_without_end) as client,
        pytest.raises(NoResponse, match="not respond in time"),
    ):
        client.ask("jobs", 0.5)


@pytest.fixture
def scheduler(tmp_path: Path) -> LocalScheduler:
    return LocalScheduler("group", root=tmp_path / "root", timeout=30.0)


JOB = {"token": "t", "job": "1", "phase": "running", "host": "h", "started": 1.0, "elapsed": 2.0}
WRONG: list[object] = [{"x": 1}, [[]], None, math.nan, True]
STRANGE_JOBS = [{**JOB, key: value} for key in JOB for value in WRONG if (key, value) != ("started", None)]


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"jobs": []},
        {"version": "1"},
        *({"version": "1", "jobs": jobs} for jobs in (5, None, "abc", {"a": 1}, [5], [None], [[]], [{}])),
        {"version": "1", "jobs": [{**JOB, "phase": "asleep"}]},
        {"version": "1", "jobs": [{**JOB, "more": 1}]},
        *({"version": "1", "jobs": [job]} for job in STRANGE_JOBS if job["elapsed"] is not None),
    ],
    ids=lambda reply: ascii(reply)[:90],
)
def test_a_wrong_response_to_a_poll_means_that_the_scheduler_is_unavailable(
    scheduler: LocalScheduler, tmp_path: Path, reply: dict[str, object]
) -> None:
    with (
        false_daemon(tmp_path / "root" / "local", reply_with(encode(reply))),
        pytest.raises(SchedulerUnavailable, match="invalid response"),
    ):
        scheduler.poll()


@pytest.mark.parametrize(
    "answers",
    [None, 5, "a", [], [{}, {}], [{"job": "1"}, {"job": "2"}], [None], [{"job": 7}], [{"rejected": []}]],
)
def test_after_a_wrong_response_to_a_submission_it_is_unknown_what_was_submitted(
    scheduler: LocalScheduler, tmp_path: Path, answers: object
) -> None:
    reply = encode({"version": "x", "answers": answers})
    request = JobRequest("t", "n", "order", "zipapp", "log", 1, 0, 0, 0, 60.0, 5.0)
    with false_daemon(tmp_path / "root" / "local", reply_with(reply)):
        assert scheduler.submit([request])["t"].status is SubmitStatus.UNKNOWN


@pytest.mark.parametrize("state", [{}, {"jobs": 5}, {"jobs": [{}]}, {"jobs": [{"phase": "running"}]}])
def test_a_daemon_that_claims_to_be_older_and_reports_nonsense_does_not_stop_the_controller(
    scheduler: LocalScheduler, tmp_path: Path, state: dict[str, object]
) -> None:
    replies = {b'"version"': {"error": "unknown operation"}, b'"jobs"': state}

    def answer(connection: socket.socket) -> None:
        received = connection.recv(1 << 20)
        found = [reply for name, reply in replies.items() if b'"operation":' + name in received]
        connection.sendall(encode(found[0] if found else {"error": "no"}))

    request = JobRequest("t", "n", "order", "zipapp", "log", 1, 0, 0, 0, 60.0, 5.0)
    with false_daemon(tmp_path / "root" / "local", answer):
        assert scheduler.submit([request])["t"].status is SubmitStatus.REJECTED
