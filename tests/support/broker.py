"""RabbitMQ for tests: one broker that all share, with a virtual host for each test, and private ones to kill.

The shared broker is started and locked like the clusters (`support.clusters`). A private broker has a slot: a
directory, ports, and a lock that its process holds. What a killed test run left in a slot is stopped by the
next run that takes it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outlast.gateway.settings import BrokerSettings
from support import clusters

USER = PASSWORD = "test"
#: Ports of private brokers, ten for each. Below 32768: a restarted broker needs the same ones.
_SLOTS = range(27700, 28000, 10)
#: As RabbitMQ 4.0 and later: the default of 3.10 is 128 MiB.
MESSAGE_LIMIT = 16 * 2**20


@dataclass
class Broker:
    """A running broker."""

    directory: Path
    port: int
    virtual_host: str = "/"
    variables: Mapping[str, str] = field(default_factory=dict)

    # --- for clients --------------------------------------------------------------------------------------

    def settings(self, folder: Path, user: str = USER, **changes: Any) -> BrokerSettings:
        """Return settings for a client; the file of its password is put into `folder`."""
        credentials = folder / ("%s.yaml" % user)
        credentials.touch(0o600)
        credentials.write_text("user: '%s'\npassword: '%s'\n" % (user, PASSWORD))
        plain = {"host": "localhost", "port": self.port, "virtual_host": self.virtual_host, "heartbeat": 5}
        return BrokerSettings(**{**plain, "connect_timeout": 5.0, "credentials": credentials, **changes})

    @property
    def tls_port(self) -> int:
        return self.port + 1

    @property
    def ca_file(self) -> Path:
        return self.directory / "tls" / "ca.pem"

    # --- the management API -------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the management API; raise AssertionError if it is refused."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port + 2, timeout=30)
        try:
            login = base64.b64encode(("%s:%s" % (USER, PASSWORD)).encode()).decode()
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": "Basic " + login, "Content-Type": "application/json"}
            connection.request(method, "/api/" + path, content, headers)
            reply = connection.getresponse()
            text = reply.read()
            assert reply.status < 300, "%s %s: %d %s" % (method, path, reply.status, text[:500])
            return json.loads(text) if text else None
        finally:
            connection.close()

    def declare_queue(
        self, name: str, durable: bool = True, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self.api("PUT", self._queue(name), {"durable": durable, "arguments": dict(arguments or {})})

    def delete_queue(self, name: str) -> None:
        self.api("DELETE", self._queue(name))

    def queue(self, name: str) -> dict[str, Any] | None:
        """Return what the broker has of a queue; None if there is none."""
        queues = self.api("GET", "queues/" + self._vhost)
        return next((each for each in queues if each["name"] == name), None)

    def publish(self, queue: str, body: bytes = b"{}", **properties: Any) -> None:
        """Put a message into a queue, which must exist."""
        message = {
            "properties": properties,
            "routing_key": queue,
            "payload": base64.b64encode(body).decode(),
            "payload_encoding": "base64",
        }
        done = self.api("POST", "exchanges/%s/amq.default/publish" % self._vhost, message)
        assert done["routed"], "there is no queue %s" % queue

    def get(self, queue: str, most: int = 1000) -> list[dict[str, Any]]:
        """Take messages out of a queue."""
        wanted = {"count": most, "ackmode": "ack_requeue_false", "encoding": "base64"}
        return list(self.api("POST", self._queue(queue) + "/get", wanted))

    def permit(self, user: str, configure: str = "", write: str = "", read: str = "") -> None:
        """Set a user's rights in this virtual host; empty: none."""
        rights = {"configure": configure or "^$", "write": write or "^$", "read": read or "^$"}
        self.api("PUT", "permissions/%s/%s" % (self._vhost, user), rights)

    @property
    def _vhost(self) -> str:
        return quote(self.virtual_host, safe="")

    def _queue(self, name: str) -> str:
        return "queues/%s/%s" % (self._vhost, quote(name, safe=""))

    @contextlib.contextmanager
    def own_virtual_host(self) -> Iterator[Broker]:
        """Yield this broker with a virtual host of its own."""
        inner = Broker(self.directory, self.port, "test-" + uuid.uuid4().hex[:12], self.variables)
        self.api("PUT", "vhosts/" + inner.virtual_host)
        inner.permit(USER, ".*", ".*", ".*")
        try:
            yield inner
        finally:
            self.api("DELETE", "vhosts/" + inner.virtual_host)


class PrivateBroker(Broker):
    """A broker that a test may kill, freeze and starve."""

    def start(self) -> None:
        """Start it, if it does not run, and wait until it answers."""
        done = self._script("up")
        if done.returncode != 0:
            clusters.not_here("a private RabbitMQ: " + done.stderr.strip()[-500:])

    def stop(self) -> None:
        """Stop it; what is in durable queues is kept."""
        self.thaw()
        self._script("down")

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone.

        First its quorum queues must be registered on the disk: RabbitMQ 3.10 writes that with a delay of
        three seconds, and a queue that is not registered never has a leader again.
        """
        until(self._has_registered_queues, "the queues are not registered")
        self._signal(signal.SIGKILL)
        until(lambda: self._pid() is None, "the broker survived SIGKILL")

    @property
    def runs(self) -> bool:
        return self._pid() is not None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        # One that was killed may be gone at any moment.
        if (pid := self._pid()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def set_alarm(self, on: bool) -> None:
        """Make it short of memory, or end that. It reads nothing from connections that publish then."""
        limit = "1" if on else "1GB"
        self._ctl("set_vm_memory_high_watermark", "absolute", limit)

    def _ctl(self, *arguments: str) -> None:
        script = '. "$1"; shift; exec rabbitmqctl -q "$@"'
        command = ["bash", "-c", script, "ctl", str(self.directory / "env.sh"), *arguments]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)

    def _script(self, command: str) -> subprocess.CompletedProcess[str]:
        extra = "max_message_size = %d" % MESSAGE_LIMIT
        own = {"RABBITMQ_DIRECTORY": str(self.directory), "RABBITMQ_PORT": str(self.port)}
        return subprocess.run(
            [str(clusters.SCRIPTS / "rabbitmq"), command],
            env={**os.environ, **own, "RABBITMQ_EXTRA": extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=clusters.PATIENCE,
            check=False,
        )

    def _pid(self) -> int | None:
        """Return the process id of the broker; None if it does not run. The id alone proves nothing."""
        try:
            pid = int((self.directory / "run" / "server.pid").read_text())
            environ = Path("/proc/%d/environ" % pid).read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.directory).encode() in environ else None

    def _has_registered_queues(self) -> bool:
        queues = [queue for queue in self.api("GET", "queues") if queue.get("type") == "quorum"]
        names = [("%s_%s" % (queue["vhost"].replace("/", "%2F"), queue["name"])).encode() for queue in queues]
        files = self.directory.glob("mnesia/*/quorum/*/names.dets")
        registered = b"".join(file.read_bytes() for file in files)
        # As Erlang stores an atom: after its length.
        return all(bytes([len(name)]) + name in registered for name in names)

    def _signal(self, number: int) -> None:
        pid = self._pid()
        assert pid is not None, "the broker does not run"
        os.kill(pid, number)


def shared_broker() -> Broker:
    """Return the broker that all tests share; it is started if it is not up.

    Skips the test if it cannot be had; in CI the test fails instead.
    """
    variables = clusters.environment("rabbitmq")
    return Broker(Path(variables["RABBITMQ_TEST_DIRECTORY"]), int(variables["RABBITMQ_TEST_PORT"]))


@contextlib.contextmanager
def private_broker() -> Iterator[PrivateBroker]:
    """Yield a broker of this process's own, without anything in it. It takes about five seconds to start."""
    # The package is installed under the lock of the shared broker's script.
    shared_broker()
    with contextlib.ExitStack() as stack:
        broker = next(filter(None, (_take_slot(stack, port) for port in _SLOTS)), None)
        assert broker is not None, "all slots of private brokers are taken"
        broker.start()
        try:
            yield broker
        finally:
            if broker.runs:
                broker._signal(signal.SIGKILL)  # quicker than an orderly end
            broker.stop()


def _take_slot(stack: contextlib.ExitStack, port: int) -> PrivateBroker | None:
    """Return a broker that is not started, whose slot is locked for the stack; None if it is taken."""
    home = clusters.HOME / "rabbitmq-private"
    home.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((home / ("%d.lock" % port)).open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    broker = PrivateBroker(home / str(port), port)
    broker.stop()
    subprocess.run(["rm", "-rf", str(broker.directory)], check=True, timeout=60)
    # Another program may have one of the ports.
    return broker if all(_is_free(each) for each in range(port, port + 5)) else None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def until(condition: Callable[[], Any], otherwise: object, seconds: float = 60.0) -> Any:
    """Wait until the condition returns something true, and return that. `otherwise` may be a function."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, otherwise() if callable(otherwise) else otherwise
        time.sleep(0.02)
    return found
