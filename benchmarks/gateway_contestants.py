"""What takes requests from a broker and answers them: the gateway, a worker of Celery, and Galaxy's Pulsar.

Each gets its requests from the same application, which sends again what the broker has not confirmed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gateway_scene  # first: it puts the tests on the path
import pika

from support.broker import PASSWORD, USER, Broker
from support.gateway_application import REPLIES, Application, Received
from support.gateway_lab import GatewayLab, gateway_lab

#: Trainings at the same time, as the hosts of the laboratory have.
PARALLEL = 8
CELERY_QUEUE = "celery"
PULSAR_EXCHANGE, PULSAR_QUEUE, PULSAR_REPLIES = "pulsar", "pulsar__setup", "pulsar__status_update"


class Contestant(Protocol):
    """Something that takes requests from a broker and answers them."""

    application: Application

    @property
    def starts(self) -> Path:
        """A file with a line for each start of a training, which begins with its number."""

    def start(self) -> None:
        """Start the process that consumes."""

    def kill(self) -> None:
        """Kill it with SIGKILL. Trainings that are under way are left alone."""

    def request(self, id: str, number: int, seconds: float) -> None:
        """Send a request."""

    def is_result(self, received: Received) -> bool:
        """Return True if an answer is no failure."""


@dataclass
class _Gateway:
    lab: GatewayLab
    application: Application
    process: subprocess.Popen[bytes] | None = None

    @property
    def starts(self) -> Path:
        return self.lab.starts

    def start(self) -> None:
        self.process = self.lab.up()

    def kill(self) -> None:
        assert self.process is not None
        self.lab.kill(self.process)

    def request(self, id: str, number: int, seconds: float) -> None:
        self.application.request(id, number=number, seconds=seconds)

    def is_result(self, received: Received) -> bool:
        return received.answer.kind == "result"


@contextlib.contextmanager
def gateway(broker: Broker) -> Iterator[_Gateway]:
    with gateway_lab(broker) as lab:
        lab.write_template("fast", quota=gateway_scene.MANY)
        yield _Gateway(lab, lab.application())


class _CeleryApplication(Application):
    """The same application; its messages are those of Celery's protocol, version 2."""

    def properties(self, id: str) -> Any:
        headers = {"lang": "py", "task": "train", "id": id, "root_id": id, "parent_id": None, "group": None}
        return pika.BasicProperties(
            correlation_id=id,
            reply_to=REPLIES,
            delivery_mode=2,
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
        )


class _Workers:
    """Processes of another program, in sessions of their own, and a directory for them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-bench-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def starts(self) -> Path:
        return self.folder / "starts"

    def start(self, command: Sequence[str], place: Path, variables: dict[str, str]) -> None:
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                cwd=place,
                start_new_session=True,
            )
        self._processes.append(process)

    def kill(self) -> None:
        self._processes[-1].kill()
        self._processes[-1].wait(60)

    def close(self) -> None:
        """End everything: also what a killed worker left behind, in its session."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


def _url(broker: Broker) -> str:
    return "amqp://%s:%s@127.0.0.1:%d/%s" % (USER, PASSWORD, broker.port, broker.virtual_host)


@dataclass
class _Celery:
    broker: Broker
    application: Application
    workers: _Workers = field(default_factory=_Workers)

    @property
    def starts(self) -> Path:
        return self.workers.starts

    def start(self) -> None:
        variables = {
            "BENCH_BROKER": _url(self.broker),
            "BENCH_STARTS": str(self.starts),
            "BENCH_REPLIES": REPLIES,
        }
        command = [sys.executable, "-m", "celery", "-A", "celery_worker", "worker"]
        options = ["--concurrency", str(PARALLEL), "--without-gossip", "--without-mingle"]
        self.workers.start([*command, *options], Path(__file__).parent, variables)

    def kill(self) -> None:
        self.workers.kill()

    def request(self, id: str, number: int, seconds: float) -> None:
        embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        self.application.send(id, json.dumps([[number, seconds], {}, embedded]).encode())

    def is_result(self, received: Received) -> bool:
        return True  # a task that fails sends nothing


@contextlib.contextmanager
def celery(broker: Broker) -> Iterator[_Celery]:
    contestant = _Celery(broker, _CeleryApplication(broker, requests=CELERY_QUEUE))
    try:
        yield contestant
    finally:
        contestant.application.close()
        contestant.workers.close()


class _PulsarApplication(Application):
    """The same application; its messages are those of Galaxy, and answers are the last states of jobs."""

    def properties(self, id: str) -> Any:
        return pika.BasicProperties(
            delivery_mode=2, content_type="application/json", content_encoding="utf-8"
        )

    def _collect(self, connection: Any) -> None:
        channel = connection.channel()
        channel.exchange_declare(PULSAR_EXCHANGE, "direct", durable=True)
        channel.queue_declare(PULSAR_REPLIES, durable=True)
        channel.queue_bind(PULSAR_REPLIES, PULSAR_EXCHANGE, PULSAR_REPLIES)
        channel.basic_qos(prefetch_count=50)

        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            state = json.loads(body)
            if state.get("complete") == "true":
                found = Received("", body, bool(method.redelivered))
                with self._lock:
                    self.answers.setdefault(state["job_id"], []).append(found)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(PULSAR_REPLIES, take)
        while not self._stop.is_set() and channel.is_open:
            connection.process_data_events(0.2)


@dataclass
class _Pulsar:
    program: str
    broker: Broker
    application: Application
    workers: _Workers = field(default_factory=_Workers)

    @property
    def starts(self) -> Path:
        return self.workers.starts

    def start(self) -> None:
        folder = self.workers.folder
        # Its persistent outbox is on by itself. The only manager that needs no cluster.
        manager = {"type": "queued_python", "num_concurrent_jobs": PARALLEL}
        settings = {
            "message_queue_url": _url(self.broker),
            "persistence_directory": str(folder / "persistence"),
            "staging_directory": str(folder / "staging"),
            "amqp_publish_retry": True,
            "conda_auto_init": False,
            "conda_auto_install": False,
            "managers": {"_default_": manager},
        }
        (folder / "app.yml").write_text(json.dumps(settings))
        command = [self.program, "--app_conf_path", str(folder / "app.yml"), "-c", str(folder)]
        self.workers.start(command, folder, {})

    def kill(self) -> None:
        self.workers.kill()

    def request(self, id: str, number: int, seconds: float) -> None:
        line = "echo %d - - >> %s; sleep %.3f; echo done" % (number, shlex.quote(str(self.starts)), seconds)
        job = {
            "job_id": id,
            "command_line": line,
            "setup_params": {"job_id": id, "tool_id": "train", "tool_version": "1"},
            "remote_staging": {},
            "submit_params": {},
            "env": [],
        }
        self.application.send(id, json.dumps(job).encode())

    def is_result(self, received: Received) -> bool:
        state = json.loads(received.body)
        return bool(state["status"] == "complete" and state["returncode"] == 0)


@contextlib.contextmanager
def pulsar(broker: Broker, program: str) -> Iterator[_Pulsar]:
    contestant = _Pulsar(program, broker, _PulsarApplication(broker, requests=PULSAR_QUEUE))
    try:
        yield contestant
    finally:
        contestant.application.close()
        contestant.workers.close()
