"""The daemon of the local cluster and its clients: hostile ones, waiting ones, too many of them."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.scheduler_harness import PATIENCE, LocalHarness, await_death
from outlast import node
from outlast.errors import BadInput
from outlast.local_cluster.client import Client, NoResponse, NotSent, Refused
from outlast.local_cluster.fingerprint import code_fingerprint
from outlast.local_cluster.messages import LARGEST, BadMessage, decode, encode, socket_address
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers.base import JobPhase, SchedulerUnavailable, SubmitStatus
from outlast.schedulers.local import Host


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def connect(cluster: LocalHarness) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE)
    with socket_address(cluster.place) as address:
        sock.connect(address)
    return sock


def until_closed(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


GARBAGE = {
    "not JSON": struct.pack(">I", 5) + b"hello",
    "not UTF-8": struct.pack(">I", 3) + b"\xff\xfe\xfd",
    "not a table": struct.pack(">I", 2) + b"[]",
    "nested too deep": struct.pack(">I", 200_000) + b"[" * 200_000,
    "longer than allowed": struct.pack(">I", LARGEST + 1),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "another protocol": encode({"protocol": 99, "operation": "poll", "group": "x"}),
    "no operation": encode({"protocol": 1}),
    "no group": encode({"protocol": 1, "operation": "poll"}),
    "a group of the wrong type": encode({"protocol": 1, "operation": "poll", "group": []}),
    "an environment of the wrong type": encode(
        {
            "protocol": 1,
            "operation": "submit",
            "code": code_fingerprint(),
            "group": "g",
            "requests": [],
            "environment": 3,
        }
    ),
    "no hosts": encode({"protocol": 1, "operation": "hello", "hosts": {}}),
    "a wait of the wrong type": encode(
        {"protocol": 1, "operation": "wait", "group": "g", "since": "", "seconds": {}}
    ),
}


#: Makes a daemon of the version that did not know the operation "version".
OLDER_DAEMON = """
from outlast.local_cluster.daemon import Daemon
from stub_job import run

create = Daemon.__init__

def create_older(self, *arguments):
    create(self, *arguments)
    del self.operations["version"]

Daemon.__init__ = create_older
"""

LIST_IMPORTED = """
import sys

def run(order, job):
    with open(%r, "w") as names:
        names.write(" ".join(sys.modules))
    return 0
"""


@pytest.mark.parametrize("kind", sorted(GARBAGE))
def test_garbage_gets_an_error_and_the_daemon_continues(cluster: LocalHarness, kind: str) -> None:
    pid = cluster.scheduler.daemon_pid()
    with connect(cluster) as sock:
        sock.sendall(GARBAGE[kind])
        reply = decode(until_closed(sock))
    assert reply is not None and reply["error"]
    assert cluster.scheduler.daemon_pid() == pid


def test_clients_that_are_idle_or_never_read_do_not_block_others(cluster: LocalHarness) -> None:
    cluster.scheduler.daemon_pid()
    silent = [connect(cluster) for _ in range(20)]
    half = connect(cluster)
    half.sendall(encode({"protocol": 1, "operation": "poll", "group": "experiment"})[:-3])
    deaf = connect(cluster)
    deaf.sendall(encode({"protocol": 1, "operation": "poll", "group": "experiment"}))
    request = cluster.request()
    cluster.scheduler.submit([request])
    assert cluster.await_end(request.token)[request.token].exit_code == 0
    half.close()
    assert request.token in cluster.scheduler.poll()
    for sock in (*silent, deaf):
        sock.close()


def test_invalid_jobs_are_rejected_one_by_one(cluster: LocalHarness) -> None:
    good = cluster.request()
    bad = [replace(cluster.request(), time=0.0), replace(cluster.request(), log="a\0b")]
    answers = cluster.scheduler.submit([*bad, good])
    assert [answers[one.token].status for one in bad] == [SubmitStatus.REJECTED, SubmitStatus.REJECTED]
    assert answers[good.token].status is SubmitStatus.ACCEPTED


def test_a_truncated_message_is_incomplete_wherever_it_is_cut() -> None:
    data = encode({"operation": "poll"})
    assert [decode(data[:length]) for length in range(len(data))] == [None] * len(data)
    assert decode(data) == {"operation": "poll"}
    with pytest.raises(BadMessage):
        decode(struct.pack(">I", LARGEST + 1))


def test_many_clients_wait_at_once_and_all_are_notified_of_a_change(cluster: LocalHarness) -> None:
    held = cluster.fifo("held")
    request = cluster.request(held.wait_code)
    cluster.scheduler.submit([request])
    cluster.await_start(request.token)
    adapters = [cluster.another_adapter() for _ in range(5)]
    notified: list[bool] = []

    def wait(adapter: object) -> None:
        adapter.wait(PATIENCE * 2)  # type: ignore[attr-defined]
        notified.append(True)

    for adapter in adapters:
        adapter.poll()
    threads = [threading.Thread(target=wait, args=(adapter,)) for adapter in adapters]
    for thread in threads:
        thread.start()
    held.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert notified == [True] * 5


def test_a_wait_without_a_change_ends_with_its_time(cluster: LocalHarness) -> None:
    cluster.scheduler.poll()
    with cluster.record_calls() as made:
        cluster.scheduler.wait(0.05)
    assert made == ["wait"]


def test_a_wait_without_a_daemon_starts_none(cluster: LocalHarness) -> None:
    cluster.scheduler.wait(0.01)
    assert list(cluster.place.iterdir()) == []


def test_the_daemon_exits_when_idle_and_the_next_one_knows_the_ended_jobs(tmp_path: Path) -> None:
    cluster = LocalHarness(tmp_path, idle=0.05)
    request = cluster.request("raise SystemExit(4)")
    cluster.scheduler.submit([request])
    cluster.await_end(request.token)
    pid = cluster.scheduler.daemon_pid()
    await_death(pid, start_ticks(pid) or 0)
    assert cluster.scheduler.poll()[request.token].exit_code == 4
    assert cluster.scheduler.daemon_pid() != pid
    cluster.close()


def test_clients_that_start_a_daemon_at_the_same_time_get_one(cluster: LocalHarness) -> None:
    pids: list[int] = []
    threads = [
        threading.Thread(target=lambda: pids.append(cluster.another_adapter().daemon_pid())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(pids) == 6
    assert len(set(pids)) == 1


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory-with-a-long-name"] * 10)
    deep.mkdir(parents=True)
    cluster = LocalHarness(deep)
    request = cluster.request("raise SystemExit(5)")
    cluster.scheduler.submit([request])
    assert cluster.await_end(request.token)[request.token].exit_code == 5
    cluster.close()


def test_the_socket_is_for_its_owner_only_and_created_again_when_removed(cluster: LocalHarness) -> None:
    cluster.scheduler.daemon_pid()
    path = cluster.place / "socket"
    assert path.stat().st_mode & 0o777 == 0o600
    pid = cluster.scheduler.daemon_pid()
    path.unlink()
    assert cluster.another_adapter(timeout=PATIENCE).daemon_pid() == pid


def test_stop_refuses_while_there_are_jobs_and_by_force_kills_them(cluster: LocalHarness) -> None:
    ready = cluster.fifo("ready")
    requests = [cluster.request(ready.notify_code() + "import time; time.sleep(600)") for _ in range(3)]
    cluster.scheduler.submit(requests)
    ready.read()
    pid = cluster.scheduler.daemon_pid()
    ticks = start_ticks(pid)
    with pytest.raises(BadInput, match="3 jobs"):
        cluster.scheduler.stop()
    cluster.scheduler.stop(force=True)
    await_death(pid, ticks or 0)
    views = cluster.scheduler.poll()
    assert {view.phase for view in views.values()} == {JobPhase.ENDED}
    assert all("stopped by force" in view.reason for view in views.values())


def test_stopping_a_cluster_that_is_not_running_does_nothing(cluster: LocalHarness) -> None:
    cluster.scheduler.stop()
    assert list(cluster.place.iterdir()) == []


def test_the_next_daemon_adopts_the_jobs_of_a_terminated_one(cluster: LocalHarness) -> None:
    held = cluster.fifo("held")
    request = cluster.request(held.wait_code + "raise SystemExit(6)")
    cluster.scheduler.submit([request])
    cluster.await_start(request.token)
    pid = cluster.scheduler.daemon_pid()
    ticks = start_ticks(pid)
    os.kill(pid, signal.SIGTERM)
    await_death(pid, ticks or 0)
    assert cluster.scheduler.poll()[request.token].phase is JobPhase.RUNNING
    held.release()
    assert cluster.await_end(request.token)[request.token].exit_code == 6


def test_a_daemon_with_older_code_is_replaced_once_no_job_runs(
    cluster: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = cluster.fifo("held")
    running, fresh = cluster.request(held.wait_code), cluster.request()
    cluster.scheduler.submit([running])
    cluster.await_start(running.token)
    old = cluster.scheduler.daemon_pid()
    client = Client(cluster.place, cluster.options)
    message = {
        "group": "g",
        "code": "edited since",
        "hosts": {"a": {"cpus": 1}},
        "environment": {},
        "requests": [],
    }
    assert client.ask("submit", PATIENCE, **message) == {"answers": []}
    held.release()
    cluster.await_end(running.token)
    with pytest.raises((NotSent, NoResponse)):
        client.ask("submit", 0.5, **message)  # no daemon has this code
    assert cluster.scheduler.submit([fresh])[fresh.token].status is SubmitStatus.ACCEPTED
    assert cluster.scheduler.daemon_pid() != old


def test_a_daemon_of_an_older_version_with_running_jobs_gets_no_new_ones_and_the_message_says_what_to_type(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code = tmp_path_factory.mktemp("code")
    (code / "older.py").write_text(OLDER_DAEMON)
    cluster = LocalHarness(tmp_path)
    new = cluster.options
    cluster.options = replace(new, run="older:run", path=(*new.path, str(code)))
    cluster.scheduler = cluster.another_adapter()
    held = cluster.fifo("held")
    running, fresh = cluster.request(held.wait_code + "raise SystemExit(6)"), cluster.request()
    cluster.scheduler.submit([running])
    cluster.await_start(running.token)
    pid = cluster.scheduler.daemon_pid()
    ticks = start_ticks(pid)
    cluster.options = new
    cluster.scheduler = cluster.another_adapter()
    refused = cluster.scheduler.submit([fresh])[fresh.token]
    assert (refused.status, refused.transient) == (SubmitStatus.REJECTED, True)
    assert "daemon (process %d) is of an older version of Outlast" % pid in refused.reason
    assert "running jobs (1)" in refused.reason and "type `kill %d`" % pid in refused.reason
    os.kill(pid, signal.SIGTERM)
    await_death(pid, ticks or 0)
    assert cluster.scheduler.submit([fresh])[fresh.token].status is SubmitStatus.ACCEPTED
    held.release()
    assert cluster.await_end(running.token)[running.token].exit_code == 6
    cluster.close()


def test_a_job_finds_the_whole_node_program_imported_so_an_upgrade_on_disk_cannot_mix_two_versions(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code, seen = tmp_path_factory.mktemp("code"), tmp_path / "imported"
    (code / "imports.py").write_text(LIST_IMPORTED % str(seen))
    cluster = LocalHarness(tmp_path)
    cluster.options = replace(cluster.options, run="imports:run", path=(*cluster.options.path, str(code)))
    cluster.scheduler = cluster.another_adapter()
    request = cluster.request()
    cluster.scheduler.submit([request])
    cluster.await_end(request.token)
    cluster.close()
    expected = {module.name for module in pkgutil.walk_packages(node.__path__, "outlast.node.")}
    assert "outlast.node.staging.http.tls" in expected
    assert expected <= set(seen.read_text().split())


def test_the_latest_hosts_are_used_and_survive_the_daemon(cluster: LocalHarness) -> None:
    cluster.scheduler.daemon_pid()
    held = cluster.fifo("held")
    running, waiting = cluster.request(held.wait_code), cluster.request()
    cluster.scheduler = cluster.another_adapter(hosts={"gamma": Host(cpus=1)})
    cluster.scheduler.submit([running, waiting])
    cluster.await_start(running.token)
    cluster.crash()
    held.release()
    views = cluster.await_end(running.token, waiting.token)
    assert [views[one.token].host for one in (running, waiting)] == ["gamma", "gamma"]


def test_an_ended_job_is_forgotten_on_request_and_a_running_one_is_not(cluster: LocalHarness) -> None:
    held = cluster.fifo("held")
    ended, running = cluster.request(), cluster.request(held.wait_code)
    cluster.scheduler.submit([ended, running])
    cluster.await_end(ended.token)
    cluster.scheduler.forget([ended.token, running.token, "unknown"])
    assert set(cluster.scheduler.poll()) == {running.token}
    cluster.crash()
    assert set(cluster.scheduler.poll()) == {running.token}
    held.release()


def test_a_daemon_that_cannot_start_reports_why_and_nothing_counts_as_sent(cluster: LocalHarness) -> None:
    broken = cluster.another_adapter(options=replace(cluster.options, run="no_such_module:run"))
    request = cluster.request()
    answer = broken.submit([request])[request.token]
    assert (answer.status, answer.transient) == (SubmitStatus.REJECTED, True)
    assert "no_such_module" in answer.reason
    with pytest.raises(SchedulerUnavailable, match=r"no_such_module.*daemon\.log"):
        broken.poll()


def test_a_full_disk_causes_a_rejection_that_may_be_retried(cluster: LocalHarness) -> None:
    client = Client(cluster.place, cluster.options)

    def full(*_: object, **__: object) -> dict[str, object]:
        raise Refused("No space left on device", transient=True)

    client.ask = full  # type: ignore[method-assign, assignment]
    cluster.scheduler._client = client
    request = cluster.request()
    answer = cluster.scheduler.submit([request])[request.token]
    assert (answer.status, answer.transient) == (SubmitStatus.REJECTED, True)


def test_render_shows_what_is_sent_and_the_hosts(cluster: LocalHarness) -> None:
    request = cluster.request(avoid=("alpha",))
    text = cluster.scheduler.render([request])
    shown, _, table = text.partition("\nhosts of local cluster local:\n")
    assert json.loads(shown)["requests"][0]["token"] == request.token
    assert [line.split()[0] for line in table.splitlines()] == ["alpha", "beta"]
    assert list(cluster.place.iterdir()) == []
