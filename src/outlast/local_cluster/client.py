"""Asking the daemon, and starting it when it is not there. Every wait is bounded by the caller's timeout."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import outlast
from outlast.job_environment import carried
from outlast.local_cluster.daemon_main import HELD, READY
from outlast.local_cluster.messages import PROTOCOL, BadMessage, decode, encode, socket_address

#: Imports nothing but the standard library and this package, whatever the user's site and cwd hold.
_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from outlast.local_cluster.daemon_main import main; main(sys.argv[2])"
)
#: A request is repeated this often when the daemon goes away under it; all requests may be repeated.
_REPEATS = 3


class NotSent(Exception):
    """The daemon cannot be reached or started: it knows nothing of the request."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and no answer came: it may have been carried out."""


class Refused(Exception):
    """The daemon answered that it will not."""

    def __init__(self, reason: str, transient: bool) -> None:
        super().__init__(reason)
        self.transient = transient


@dataclass(frozen=True)
class DaemonOptions:
    """How a daemon that has to be started is to behave."""

    #: Seconds without work after which it leaves.
    idle: float = 30.0
    #: Seconds between the SIGTERM and the SIGKILL of a cancelled job.
    cancel_grace: float = 5.0
    run: str = "outlast.node.main:run"
    kill_by_token: str = "outlast.node.process_cleanup:kill_by_token"
    #: Further directories it imports from.
    path: tuple[str, ...] = ()


class Client:
    def __init__(self, directory: Path, options: DaemonOptions) -> None:
        self.directory = directory
        self.options = options

    def ask(self, operation: str, timeout: float, *, start: bool = True, **arguments: Any) -> dict[str, Any]:
        """One request and its reply. Raises NotSent, NoAnswer or Refused."""
        deadline = time.monotonic() + timeout
        data = encode({"protocol": PROTOCOL, "operation": operation, **arguments})
        lost = 0
        while True:
            try:
                with self._connect(deadline, start) as sock:
                    reply = _exchange(sock, data, deadline)
            except NotSent as error:
                if lost:
                    raise NoAnswer(str(error)) from error
                raise
            if reply is not None and "error" in reply:
                raise Refused(str(reply["error"]), bool(reply.get("transient")))
            if reply is not None and "again" not in reply:
                return reply
            lost += reply is None
            if lost > _REPEATS:
                raise NoAnswer("the local cluster's daemon closed the connection %d times" % lost)
            if time.monotonic() >= deadline:
                why = "no answer from the local cluster's daemon within %g s" % timeout
                raise NoAnswer(why) if lost else NotSent(why)

    def _connect(self, deadline: float, start: bool) -> socket.socket:
        why = "the local cluster's daemon is not running"
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with socket_address(self.directory) as address:
                    sock.settimeout(max(0.001, deadline - time.monotonic()))
                    sock.connect(address)
                return sock
            except (FileNotFoundError, ConnectionRefusedError) as error:
                sock.close()
                if not start or not self.directory.is_dir():
                    raise NotSent("%s (%s)" % (why, error)) from error
                if time.monotonic() < deadline and self._start_daemon(deadline) == READY:
                    continue
            except (BlockingIOError, TimeoutError):
                sock.close()
                why = "the local cluster's daemon takes no connections"
            except OSError as error:
                sock.close()
                raise NotSent("the local cluster's daemon cannot be reached: %s" % error) from error
            if time.monotonic() >= deadline:
                raise NotSent(why)
            time.sleep(0.01)  # another daemon is about to open or to close its socket; neither sends an event

    def _start_daemon(self, deadline: float) -> str:
        """Start one; READY, or HELD if another one has the place."""
        settings = json.dumps({**asdict(self.options), "directory": str(self.directory)})
        package_parent = str(Path(outlast.__file__).parent.parent)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, package_parent, settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=carried(os.environ),
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            line = _read_line(process.stdout.fileno(), deadline)
            if line in (READY, HELD):
                _collect(process)
                return line
            if line is None:  # it may still come up; whoever asks next will find it
                _collect(process)
                raise NotSent("the local cluster's daemon did not start in time")
            _collect(process)
            trouble = line or process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise NotSent(
            "the local cluster's daemon could not be started: %s; see %s"
            % (trouble, self.directory / "daemon.log")
        )


def _collect(process: subprocess.Popen[bytes]) -> None:
    """The first process ends as soon as it has forked. If it hangs, a later Popen collects it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)


def _read_line(descriptor: int, deadline: float) -> str | None:
    """One line; what there is at the end of the stream; None if the time is up."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(descriptor, 4096)
        if not piece:
            break
        data += piece
    return data.decode(errors="replace").strip()


def _exchange(sock: socket.socket, data: bytes, deadline: float) -> dict[str, Any] | None:
    """The reply, or None if the daemon went away without one."""
    received = bytearray()
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.sendall(data)
        while (reply := decode(received)) is None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            piece = sock.recv(1024 * 1024)
            if not piece:
                return None
            received += piece
        return reply
    except TimeoutError as error:
        raise NoAnswer("the local cluster's daemon did not answer in time") from error
    except BadMessage as error:
        raise NoAnswer("the local cluster's daemon answered with something else: %s" % error) from error
    except OSError:
        return None
