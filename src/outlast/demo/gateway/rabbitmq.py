"""A RabbitMQ of the demo's own, which the script `tests/clusters/rabbitmq` installs, starts and stops."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outlast.errors import OutlastError

#: The user that the script creates.
USER = PASSWORD = "test"
#: The first of five ports: below those of outgoing connections, because it is started again on the same ones.
_PORTS = range(28100, 32000, 10)
#: Seconds to install and start it, to stop it, and for one response of its management API.
_STARTING, _STOPPING, _RESPONSE = 900.0, 60.0, 30.0
#: Seconds until it has registered its queues on the disk, and until its process is gone after SIGKILL.
_REGISTERING, _DYING = 30.0, 30.0


class NoBroker(OutlastError):
    """A broker cannot be installed or started here."""


class DemoBroker:
    """A broker in a directory of its own, on loopback."""

    def __init__(self, script: Path, directory: Path) -> None:
        self._script = script
        self._directory = directory
        self.port = _find_ports()

    @property
    def certificate(self) -> tuple[Path, Path]:
        """The certificate for 127.0.0.1 that its script makes, and its key; the application uses them."""
        return self._directory / "tls" / "server.pem", self._directory / "tls" / "server.key"

    @property
    def ca_file(self) -> Path:
        """The authority of that certificate."""
        return self._directory / "tls" / "ca.pem"

    def start(self) -> None:
        """Install it if it is missing, start it, and wait until it answers. Raise NoBroker."""
        done = self._call("up", _STARTING)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1].strip() if lines else "exit code %d" % done.returncode
            raise NoBroker("the demo needs RabbitMQ, which cannot be started here: %s" % reason)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it is gone.

        First its quorum queues must be registered on the disk: RabbitMQ 3.10 does that with a delay of three
        seconds, and a queue that is not registered never has a leader again.
        """
        _wait_for(self._has_registered_queues, _REGISTERING, "the broker has not registered its queues")
        pid = self._pid()
        if pid is None:
            raise OutlastError("the demo's broker has ended by itself")
        os.kill(pid, signal.SIGKILL)
        _wait_for(lambda: self._pid() is None, _DYING, "the broker survived SIGKILL")

    def stop(self) -> None:
        """Stop it and what belongs to it, also if its start was interrupted."""
        if self._directory.exists():
            self._call("down", _STOPPING)
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def create_queue(self, name: str) -> None:
        """Create a durable queue."""
        self._ask("PUT", "queues/%%2F/%s" % quote(name, safe=""), {"durable": True})

    def has_consumer(self, name: str) -> bool:
        """Return True if somebody takes messages from this queue."""
        return any(queue["name"] == name and queue.get("consumers") for queue in self._ask("GET", "queues"))

    def _has_registered_queues(self) -> bool:
        queues = [queue["name"] for queue in self._ask("GET", "queues") if queue.get("type") == "quorum"]
        names = [("%2F_" + name).encode() for name in queues]
        files = self._directory.glob("mnesia/*/quorum/*/names.dets")
        registered = b"".join(file.read_bytes() for file in files)
        # As Erlang stores an atom: after its length.
        return all(bytes([len(name)]) + name in registered for name in names)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port + 2, timeout=_RESPONSE)
        login = base64.b64encode(("%s:%s" % (USER, PASSWORD)).encode()).decode()
        headers = {"Authorization": "Basic " + login, "Content-Type": "application/json"}
        try:
            connection.request(method, "/api/" + path, json.dumps(body) if body else None, headers)
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise OutlastError("the demo's broker does not respond: %s" % error) from error
        finally:
            connection.close()
        if reply.status >= 300:
            raise OutlastError("the demo's broker refused %s %s: %d" % (method, path, reply.status))
        return json.loads(text) if text else None

    def _pid(self) -> int | None:
        """Return the broker's process id; None if it does not run. The id alone proves nothing."""
        try:
            pid = int((self._directory / "run" / "server.pid").read_text())
            environ = Path("/proc/%d/environ" % pid).read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self._directory) in environ else None

    def _processes(self) -> list[int]:
        """Return the processes whose HOME is this broker's: its programs run in an environment of its own."""
        home, found = b"HOME=%s/home\0" % os.fsencode(self._directory), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is another user's
                if home in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def _call(self, command: str, seconds: float) -> subprocess.CompletedProcess[str]:
        own = {"RABBITMQ_DIRECTORY": str(self._directory), "RABBITMQ_PORT": str(self.port)}
        try:
            return subprocess.run(
                [str(self._script), command],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoBroker("the demo needs RabbitMQ, which cannot be started here: %s" % error) from error


def _find_ports() -> int:
    """Return the first of five free ports. Raise NoBroker."""
    for first in random.sample(_PORTS, len(_PORTS)):
        if all(map(_is_free, range(first, first + 5))):
            return first
    raise NoBroker("the demo needs five free ports between %d and %d" % (_PORTS.start, _PORTS.stop))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_for(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            raise OutlastError(otherwise)
        time.sleep(0.1)
