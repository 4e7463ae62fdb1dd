"""The daemon's loop: requests answered, jobs started, watched and ended; it leaves when nothing is to do."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.local_cluster.cluster import Ability, LocalCluster
from outlast.local_cluster.fingerprint import code_fingerprint
from outlast.local_cluster.hosts import hosts_from_json, hosts_to_json
from outlast.local_cluster.messages import PROTOCOL
from outlast.local_cluster.server import ClientConnection, SocketServer
from outlast.local_cluster.spawn import DAEMON_SIGNALS

LONGEST_WAIT = 60.0
#: How often it looks after things that give no sign of their own.
HOUSEKEEPING_SECONDS = 2.0
#: How often it looks at jobs that are not its children, where the kernel does not tell of their end.
UNWATCHED_SECONDS = 0.1
#: How long a stop by force waits for the last process.
STOP_SECONDS = 5.0
#: How long it stays for replies that are under way.
FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Waiter:
    connection: ClientConnection
    group: str
    since: str
    until: float


class Daemon:
    def __init__(self, directory: Path, lock: int, ability: Ability, idle_seconds: float) -> None:
        self.directory = directory
        self.lock = lock
        self.ability = ability
        self.idle_seconds = idle_seconds
        self.fingerprint = code_fingerprint()
        #: Tells this daemon's counts from those of one before it.
        self.instance = "%d-%d" % (os.getpid(), time.monotonic_ns())
        self.cluster = LocalCluster(directory, ability, last_seen=os.fstat(lock).st_mtime)
        self.waiters: list[Waiter] = []
        self.stoppers: list[ClientConnection] = []
        self.leaving = False
        #: Its place was removed, or another daemon has it: it looks after what runs and leaves.
        self.displaced = False
        self.stop_by: float | None = None
        now = time.monotonic()
        self.last_busy = now
        self.next_housekeeping = now
        self.selector = selectors.DefaultSelector()
        self._listen_to_signals()
        watched = [self._watch(job.pid) for job in self.cluster.adopted.values()]
        self.unwatched = not all(watched)
        self.server = SocketServer(directory, self.selector, self._handle)
        self.operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "submit": self._submit,
            "poll": lambda m: {
                "jobs": self.cluster.roster.views(m["group"]),
                "version": self._version(m["group"]),
            },
            "jobs": lambda m: {
                "pid": os.getpid(),
                "hosts": self.cluster.slots.usage(),
                "jobs": self.cluster.roster.listing(),
            },
            "cancel": lambda m: self._ended_by(self.cluster.cancel, m),
            "evict": lambda m: self._ended_by(self.cluster.evict, m),
            "kill": lambda m: self._ended_by(self.cluster.kill, m),
            "forget": lambda m: self._ended_by(self.cluster.roster.forget, m),
        }

    def _listen_to_signals(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in DAEMON_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        self.selector.register(read_end, selectors.EVENT_READ, lambda _events: os.read(read_end, 65536))

    def _watch(self, pid: int) -> bool:
        """Wake up when a process that is not our child ends; False if the kernel cannot do that."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True  # the first round of the loop will see that
        except OSError:
            return False

        def ended(_events: int) -> None:
            self.selector.unregister(descriptor)
            os.close(descriptor)

        self.selector.register(descriptor, selectors.EVENT_READ, ended)
        return True

    def _leave(self) -> None:
        """Jobs go on without a daemon; the next one adopts them."""
        self.leaving = True

    # -- the loop -----------------------------------------------------------------------------------

    def run(self) -> None:
        more = False
        while not self.leaving:
            for key, events in self.selector.select(0.0 if more else self._pause()):
                key.data(events)
            self.cluster.reap()
            self.cluster.look_after_adopted()
            self.cluster.fire_timers()
            more = self._may_start and self.cluster.dispatch()
            self._answer_waiters()
            self.server.close_silent()
            self._think_of_leaving()
        self._flush()

    @property
    def _may_start(self) -> bool:
        return self.stop_by is None and not self.leaving and not self.displaced

    def _pause(self) -> float:
        now = time.monotonic()
        due = [self.next_housekeeping, self.cluster.next_timer(), self.server.next_expiry(), self.stop_by]
        due += [waiter.until for waiter in self.waiters]
        if self.unwatched:
            due.append(now + UNWATCHED_SECONDS)
        if self.cluster.paused_until > now:
            due.append(self.cluster.paused_until)
        if self.cluster.is_idle:
            due.append(self.last_busy + self.idle_seconds)
        return max(0.0, min(when for when in due if when is not None) - now)

    def _think_of_leaving(self) -> None:
        now = time.monotonic()
        if self.stop_by is not None and (not self.cluster.running or now > self.stop_by):
            self.leaving = True
        if not self.cluster.is_idle or self.server.connections:
            self.last_busy = now
        elif now - self.last_busy >= self.idle_seconds:
            self._leave_unless_someone_knocks()
        if now >= self.next_housekeeping:
            self.next_housekeeping = now + HOUSEKEEPING_SECONDS
            self._keep_house()

    def _leave_unless_someone_knocks(self) -> None:
        self.server.close_listener()
        if self.server.connections:
            self.server.open()
            self.last_busy = time.monotonic()
        else:
            self.leaving = True

    def _keep_house(self) -> None:
        if not self._holds_the_lock():
            self.displaced = True
            self.leaving = not self.cluster.running
            return
        with contextlib.suppress(OSError):  # a full disk: it says when a daemon last lived, no more
            os.utime(self.lock)
        self.cluster.roster.tidy()
        if not self.server.is_reachable:
            self.ability.log("the socket was removed: making it anew")
            self.server.close_listener()
            self.server.open()

    def _holds_the_lock(self) -> bool:
        try:
            return (self.directory / "daemon.lock").stat().st_ino == os.fstat(self.lock).st_ino
        except OSError:
            return False

    def _flush(self) -> None:
        """Answer those who wait for our end, give replies under way a moment, and close."""
        self.server.close_listener()
        until = time.monotonic() + FLUSH_SECONDS
        while True:
            for waiter in self.waiters:
                self.server.reply(waiter.connection, {"version": ""})
            for connection in self.stoppers:
                self.server.reply(connection, {})
            self.waiters, self.stoppers = [], []
            left = until - time.monotonic()
            if not self.server.connections or left <= 0:
                break
            for key, events in self.selector.select(left):
                key.data(events)
        fcntl.flock(self.lock, fcntl.LOCK_UN)

    # -- requests -----------------------------------------------------------------------------------

    def _handle(self, message: dict[str, Any], connection: ClientConnection) -> dict[str, Any] | None:
        try:
            if message.get("protocol") != PROTOCOL:
                return {"error": "this daemon speaks version %d of the protocol" % PROTOCOL}
            operation = message.get("operation")
            if operation == "wait":
                return self._wait(message, connection)
            if operation == "stop":
                return self._stop(message, connection)
            if operation not in self.operations:
                return {"error": "unknown operation %r" % operation}
            return self.operations[operation](message)
        except (KeyError, TypeError, ValueError) as error:
            return {"error": "%s: %s" % (type(error).__name__, error)}
        except OSError as error:
            return {"error": str(error), "transient": True}
        except Exception:  # a fault of ours in one request must not end the jobs' supervision
            self.ability.log(traceback.format_exc())
            return {"error": "the daemon failed at this request; see %s" % (self.directory / "daemon.log")}

    def _hello(self, message: dict[str, Any]) -> dict[str, Any]:
        self.cluster.roster.configure(hosts_from_json(message["hosts"]))
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "hosts": hosts_to_json(self.cluster.roster.slots.hosts),
            "unfinished": self.cluster.unfinished,
        }

    def _submit(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["code"] != self.fingerprint and not self.cluster.running:
            # Jobs are forks of this process: they would run code that is no longer on the disk.
            self.leaving = True
            return {"again": True}
        if self.stop_by is not None:
            return {"error": "the local cluster is being stopped", "transient": True}
        self.cluster.roster.configure(hosts_from_json(message["hosts"]))
        environment = {str(name): str(value) for name, value in message["environment"].items()}
        return {"answers": self.cluster.roster.submit(message["group"], message["requests"], environment)}

    def _ended_by(self, operation: Callable[[list[str]], None], message: dict[str, Any]) -> dict[str, Any]:
        operation(list(message["tokens"]))
        return {}

    def _version(self, group: str) -> str:
        return "%s:%d" % (self.instance, self.cluster.roster.changes.get(group, 0))

    def _wait(self, message: dict[str, Any], connection: ClientConnection) -> dict[str, Any] | None:
        until = time.monotonic() + min(LONGEST_WAIT, max(0.0, float(message["seconds"])))
        self.waiters.append(Waiter(connection, message["group"], message["since"], until))
        return None

    def _answer_waiters(self) -> None:
        now = time.monotonic()
        still: list[Waiter] = []
        for waiter in self.waiters:
            version = self._version(waiter.group)
            if version != waiter.since or waiter.until <= now:
                self.server.reply(waiter.connection, {"version": version})
            elif waiter.connection.is_open:
                still.append(waiter)
        self.waiters = still

    def _stop(self, message: dict[str, Any], connection: ClientConnection) -> dict[str, Any] | None:
        unfinished = self.cluster.unfinished
        if unfinished and not message.get("force"):
            return {"error": "%d jobs are queued or running" % unfinished}
        self.cluster.stop()
        self.stoppers.append(connection)
        self.stop_by = time.monotonic() + STOP_SECONDS
        return None
