"""The daemon's event loop: handles requests, drives the jobs, and exits when it is idle."""

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

import outlast
from outlast.local_cluster.cluster import ClusterHooks, LocalCluster
from outlast.local_cluster.fingerprint import code_fingerprint
from outlast.local_cluster.hosts import hosts_from_json, hosts_to_json
from outlast.local_cluster.messages import PROTOCOL
from outlast.local_cluster.server import ClientConnection, SocketServer
from outlast.local_cluster.spawn import DAEMON_SIGNALS

LONGEST_WAIT = 60.0
#: Interval of checks for changes that cause no event.
HOUSEKEEPING_SECONDS = 2.0
#: Interval of checks of adopted jobs if the kernel has no pidfd.
UNWATCHED_SECONDS = 0.1
#: How long a forced stop waits for the last process.
STOP_SECONDS = 5.0
#: How long an exit waits for replies that are being sent.
FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Waiter:
    """A client that waits for a change of its group's jobs."""

    connection: ClientConnection
    group: str
    since: str
    until: float


class Daemon:
    """The daemon of one cluster. `lock` is the descriptor of the locked `daemon.lock`."""

    def __init__(self, directory: Path, lock: int, hooks: ClusterHooks, idle_seconds: float) -> None:
        self.directory = directory
        self.lock = lock
        self.hooks = hooks
        self.idle_seconds = idle_seconds
        self.fingerprint = code_fingerprint()
        #: Distinguishes this daemon's change counts from an earlier daemon's.
        self.instance = "%d-%d" % (os.getpid(), time.monotonic_ns())
        self.cluster = LocalCluster(directory, hooks, last_seen=os.fstat(lock).st_mtime)
        self.waiters: list[Waiter] = []
        self.stoppers: list[ClientConnection] = []
        self.leaving = False
        #: Its directory was removed or taken over by another daemon: it exits when its jobs have ended.
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
            "version": lambda m: {"version": outlast.__version__, "code": self.fingerprint},
            "hello": self._hello,
            "submit": self._submit,
            "poll": lambda m: {
                "jobs": self.cluster.jobs.views(m["group"]),
                "version": self._version(m["group"]),
            },
            "jobs": lambda m: {
                "pid": os.getpid(),
                "hosts": self.cluster.slots.usage(),
                "jobs": self.cluster.jobs.listing(),
            },
            "cancel": lambda m: self._apply(self.cluster.cancel, m),
            "evict": lambda m: self._apply(self.cluster.evict, m),
            "kill": lambda m: self._apply(self.cluster.kill, m),
            "forget": lambda m: self._apply(self.cluster.jobs.forget, m),
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
        """Wake up when a process that is not a child ends; return False if the kernel cannot do that."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True  # the first round of the loop notices it
        except OSError:
            return False

        def ended(_events: int) -> None:
            self.selector.unregister(descriptor)
            os.close(descriptor)

        self.selector.register(descriptor, selectors.EVENT_READ, ended)
        return True

    def _leave(self) -> None:
        """Exit after this round. Jobs continue without a daemon; the next one adopts them."""
        self.leaving = True

    # -- the loop -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the daemon is idle, stopped or terminated."""
        more = False
        while not self.leaving:
            for key, events in self.selector.select(0.0 if more else self._timeout()):
                key.data(events)
            self.cluster.reap()
            self.cluster.check_adopted()
            self.cluster.fire_timers()
            more = self._may_start and self.cluster.dispatch()
            self._reply_to_waiters()
            self.server.close_expired()
            self._leave_if_done()
        self._flush()

    @property
    def _may_start(self) -> bool:
        return self.stop_by is None and not self.leaving and not self.displaced

    def _timeout(self) -> float:
        """Return the seconds until the next thing is due."""
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

    def _leave_if_done(self) -> None:
        now = time.monotonic()
        if self.stop_by is not None and (not self.cluster.running or now > self.stop_by):
            self.leaving = True
        if not self.cluster.is_idle or self.server.connections:
            self.last_busy = now
        elif now - self.last_busy >= self.idle_seconds:
            self._leave_unless_connected()
        if now >= self.next_housekeeping:
            self.next_housekeeping = now + HOUSEKEEPING_SECONDS
            self._housekeep()

    def _leave_unless_connected(self) -> None:
        self.server.close_listener()
        if self.server.connections:
            self.server.open()
            self.last_busy = time.monotonic()
        else:
            self.leaving = True

    def _housekeep(self) -> None:
        if not self._holds_the_lock():
            self.displaced = True
            self.leaving = not self.cluster.running
            return
        with contextlib.suppress(OSError):  # a full disk; the time only shows when a daemon last ran
            os.utime(self.lock)
        self.cluster.jobs.compact()
        if not self.server.is_reachable:
            self.hooks.log("the socket was removed and is created again")
            self.server.close_listener()
            self.server.open()

    def _holds_the_lock(self) -> bool:
        try:
            return (self.directory / "daemon.lock").stat().st_ino == os.fstat(self.lock).st_ino
        except OSError:
            return False

    def _flush(self) -> None:
        """Reply to clients that wait, finish sending replies, and release the lock."""
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
                return {"error": "this daemon uses version %d of the protocol" % PROTOCOL}
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
        except Exception:  # a bug in one request must not end the supervision of the jobs
            self.hooks.log(traceback.format_exc())
            return {"error": "the daemon failed at this request; see %s" % (self.directory / "daemon.log")}

    def _hello(self, message: dict[str, Any]) -> dict[str, Any]:
        self.cluster.jobs.configure(hosts_from_json(message["hosts"]))
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "hosts": hosts_to_json(self.cluster.jobs.slots.hosts),
            "unfinished": self.cluster.unfinished,
        }

    def _submit(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["code"] != self.fingerprint and not self.cluster.running:
            # Jobs are forks of this process and would run code that is no longer on the disk.
            self.leaving = True
            return {"again": True}
        if self.stop_by is not None:
            return {"error": "the local cluster is being stopped", "transient": True}
        self.cluster.jobs.configure(hosts_from_json(message["hosts"]))
        environment = {str(name): str(value) for name, value in message["environment"].items()}
        return {"answers": self.cluster.jobs.submit(message["group"], message["requests"], environment)}

    def _apply(self, operation: Callable[[list[str]], None], message: dict[str, Any]) -> dict[str, Any]:
        operation(list(message["tokens"]))
        return {}

    def _version(self, group: str) -> str:
        return "%s:%d" % (self.instance, self.cluster.jobs.changes.get(group, 0))

    def _wait(self, message: dict[str, Any], connection: ClientConnection) -> dict[str, Any] | None:
        until = time.monotonic() + min(LONGEST_WAIT, max(0.0, float(message["seconds"])))
        self.waiters.append(Waiter(connection, message["group"], message["since"], until))
        return None

    def _reply_to_waiters(self) -> None:
        now = time.monotonic()
        waiting: list[Waiter] = []
        for waiter in self.waiters:
            version = self._version(waiter.group)
            if version != waiter.since or waiter.until <= now:
                self.server.reply(waiter.connection, {"version": version})
            elif waiter.connection.is_open:
                waiting.append(waiter)
        self.waiters = waiting

    def _stop(self, message: dict[str, Any], connection: ClientConnection) -> dict[str, Any] | None:
        unfinished = self.cluster.unfinished
        if unfinished and not message.get("force"):
            jobs = "1 job" if unfinished == 1 else "%d jobs" % unfinished
            return {"error": "%s queued or running" % jobs}
        self.cluster.stop()
        self.stoppers.append(connection)
        self.stop_by = time.monotonic() + STOP_SECONDS
        return None
