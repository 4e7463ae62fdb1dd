"""Requests to the daemon, which is started if none is running. The caller's timeout limits every wait."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import outlast
from outlast.job_environment import filter_environment
from outlast.local_cluster.daemon_main import HELD, READY
from outlast.local_cluster.messages import PROTOCOL, BadMessage, decode, encode, socket_address

#: Imports only the standard library and this package, whatever is in the user's site-packages and cwd.
_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from outlast.local_cluster.daemon_main import main; main(sys.argv[2])"
)
#: The kernel's record of the process that listens: process, user and group.
_CREDENTIALS = struct.Struct("iII")
#: Retries of a request when the daemon closes the connection. Every request may be repeated.
_RETRIES = 3
#: The part of a timeout that a daemon has to report its version.
_VERSION_SHARE = 0.25


class NotSent(Exception):
    """The daemon cannot be reached or started: it has not received the request."""


class NoResponse(Exception):
    """The request was sent, at least in part, but there was no response: it may have been carried out."""


class Refused(Exception):
    """The daemon refused the request. `transient`: it may accept the same request later."""

    def __init__(self, reason: str, transient: bool) -> None:
        super().__init__(reason)
        self.transient = transient


@dataclass(frozen=True)
class DaemonOptions:
    """Settings of a daemon that is started."""

    #: Seconds without jobs and clients after which it exits.
    idle: float = 30.0
    #: Seconds between the SIGTERM and the SIGKILL of a cancelled job.
    cancel_grace: float = 5.0
    run: str = "outlast.node.main:run"
    kill_by_token: str = "outlast.node.process_cleanup:kill_by_token"
    #: Further directories to import from.
    path: tuple[str, ...] = ()


class Client:
    """Sends requests to the daemon of the cluster in `directory`."""

    def __init__(self, directory: Path, options: DaemonOptions) -> None:
        self.directory = directory
        self.options = options

    def ask(self, operation: str, timeout: float, *, start: bool = True, **arguments: Any) -> dict[str, Any]:
        """Send one request and return the reply. Raises NotSent, NoResponse or Refused.

        With `start`, a daemon is started if none is running.
        """
        deadline = time.monotonic() + timeout
        if operation == "submit":
            self._refuse_older_daemon(time.monotonic() + timeout * _VERSION_SHARE)
        data = encode({"protocol": PROTOCOL, "operation": operation, **arguments})
        lost = 0
        while True:
            try:
                with self._connect(deadline, start) as sock:
                    reply = _exchange(sock, data, deadline)
            except NotSent as error:
                if lost:
                    raise NoResponse(str(error)) from error
                raise
            if reply is not None and "error" in reply:
                raise Refused(str(reply["error"]), bool(reply.get("transient")))
            if reply is not None and "again" not in reply:
                return reply
            lost += reply is None
            if lost > _RETRIES:
                raise NoResponse("the local cluster's daemon closed the connection %d times" % lost)
            if time.monotonic() >= deadline:
                why = "no response from the local cluster's daemon within %g s" % timeout
                raise NoResponse(why) if lost else NotSent(why)

    def _refuse_older_daemon(self, deadline: float) -> None:
        """Raise Refused if a daemon of an older version of Outlast has running jobs.

        It would start new jobs with its own code, whose modules may no longer be on the disk. Without running
        jobs it exits when it receives a submission of other code.
        """
        try:
            if "error" not in self._ask_once("version", deadline):
                return  # older versions do not know this operation
            state = self._ask_once("jobs", deadline)
            running = sum(job["phase"] == "running" for job in state.get("jobs", ()))
            pid = int(state["pid"])
        except (NotSent, NoResponse, KeyError, TypeError, ValueError):
            return  # not running, too slow, or no daemon of ours: the submission itself will show it
        if running:
            raise Refused(
                "the local cluster's daemon (process %d) is of an older version of Outlast and cannot start "
                "new jobs; wait until its running jobs (%d) have ended, or type `kill %d`: they continue "
                "and a new daemon adopts them" % (pid, running, pid),
                transient=True,
            )

    def _ask_once(self, operation: str, deadline: float) -> dict[str, Any]:
        """Send a request without arguments to a running daemon; return its reply, which may be an error."""
        with self._connect(deadline, start=False) as sock:
            data = encode({"protocol": PROTOCOL, "operation": operation})
            reply = _exchange(sock, data, deadline)
        if reply is None:
            raise NoResponse("the local cluster's daemon closed the connection")
        return reply

    def _connect(self, deadline: float, start: bool) -> socket.socket:
        why = "the local cluster's daemon is not running"
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with socket_address(self.directory) as address:
                    sock.settimeout(max(0.001, deadline - time.monotonic()))
                    sock.connect(address)
                _check_peer(sock)
                return sock
            except (FileNotFoundError, ConnectionRefusedError) as error:
                sock.close()
                if not start or not self.directory.is_dir():
                    raise NotSent("%s (%s)" % (why, error)) from error
                if time.monotonic() < deadline and self._start_daemon(deadline) == READY:
                    continue
            except (BlockingIOError, TimeoutError):
                sock.close()
                why = "the local cluster's daemon accepts no connections"
            except OSError as error:
                sock.close()
                raise NotSent("the local cluster's daemon cannot be reached: %s" % error) from error
            if time.monotonic() >= deadline:
                raise NotSent(why)
            time.sleep(0.01)  # another daemon is opening or closing its socket; there is no event to wait for

    def _start_daemon(self, deadline: float) -> str:
        """Start a daemon. Return READY, or HELD if another one has the lock. Raises NotSent."""
        settings = json.dumps({**asdict(self.options), "directory": str(self.directory)})
        package_parent = str(Path(outlast.__file__).parent.parent)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, package_parent, settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=filter_environment(os.environ),
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            line = _read_line(process.stdout.fileno(), deadline)
            if line in (READY, HELD):
                _collect(process)
                return line
            if line is None:  # it may become ready later
                _collect(process)
                raise NotSent("the local cluster's daemon did not start in time")
            _collect(process)
            reason = line or process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise NotSent(
            "the local cluster's daemon could not be started: %s; see %s"
            % (reason, self.directory / "daemon.log")
        )


def _check_peer(sock: socket.socket) -> None:
    """Raise NotSent if the daemon belongs to another user, who would run our jobs."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(packed)
    if user != os.geteuid():
        sock.close()
        raise NotSent(
            "the local cluster's daemon (process %d) belongs to user %d, and you are %d; set "
            "OUTLAST_LOCAL_ROOT to a directory of yours" % (pid, user, os.geteuid())
        )


def _collect(process: subprocess.Popen[bytes]) -> None:
    """Wait for the first process, which exits after forking. If it hangs, a later Popen collects it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)


def _read_line(descriptor: int, deadline: float) -> str | None:
    """Return one line, or the rest of the stream at its end; None after the deadline."""
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
    """Send a request and return the reply; None if the daemon closed the connection. Raises NoResponse."""
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
        raise NoResponse("the local cluster's daemon did not respond in time") from error
    except BadMessage as error:
        raise NoResponse("the local cluster's daemon sent an invalid response: %s" % error) from error
    except OSError:
        return None
