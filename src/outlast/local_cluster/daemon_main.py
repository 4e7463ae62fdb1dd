"""The daemon's entry point: detach, lock the directory, report to the client that started it, and serve."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast import node
from outlast.local_cluster.cluster import ClusterHooks
from outlast.local_cluster.daemon import Daemon
from outlast.local_cluster.processes import become_subreaper

LOG_BYTES = 1024 * 1024
#: How long to wait for a daemon that is exiting.
LOCK_SECONDS = 5.0

READY, HELD = "ready", "held"


def main(settings: str) -> None:
    """Detach and serve. One line on stdout is the result: ready, held (another daemon runs), or an error."""
    options: dict[str, Any] = json.loads(settings)
    report = os.dup(1)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    _reset_signals()
    directory = Path(options["directory"])
    try:
        lock = _acquire_lock(directory)
        if lock is None:
            _report(report, HELD)
            os._exit(0)
        log = _redirect(directory / "daemon.log")
        become_subreaper()
        sys.path += options["path"]
        hooks = ClusterHooks(
            run=_import_name(options["run"]),
            kill_by_token=_import_name(options["kill_by_token"]),
            cancel_grace=options["cancel_grace"],
            log=log,
        )
        daemon = Daemon(directory, lock, hooks, options["idle"])
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        _report(report, "%s: %s" % (type(error).__name__, error))
        os._exit(1)
    _report(report, READY)
    _import_node(log)
    gc.collect()
    gc.freeze()  # objects that stay: jobs share their memory as long as it is not written
    try:
        daemon.run()
    except BaseException:
        log(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _reset_signals() -> None:
    """Restore default signal handling, so that jobs do not inherit ignored signals such as nohup's SIGHUP.

    SIGPIPE and SIGXFSZ, which Python ignores itself, stay ignored.
    """
    unchangeable = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - unchangeable:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _report(report: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the client did not wait; others will find the socket
        os.write(report, line.replace("\n", " ").encode() + b"\n")
    os.close(report)


def _acquire_lock(directory: Path) -> int | None:
    """Return the descriptor of the lock, or None if another daemon holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory / "daemon.lock", flags, 0o600)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if (directory / "socket").exists() or time.monotonic() > until:
                return None
        time.sleep(0.01)  # the release of a lock causes no event


def _import_name(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _import_node(log: Callable[[str], None]) -> None:
    """Import every module of the node program.

    Jobs are forks: one that imported a module later would take it from the disk, where an upgrade may have
    put another version meanwhile.
    """
    for module in pkgutil.walk_packages(node.__path__, node.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except Exception:
            log("cannot import %s: %s" % (module.name, traceback.format_exc()))


class _DaemonLog:
    """Writes to two files of limited size, which also get stdout and stderr."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if os.fstat(descriptor).st_size > LOG_BYTES:
            os.close(descriptor)
            self.path.replace(self.path.with_suffix(".log.1"))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def __call__(self, text: str) -> None:
        try:
            if os.fstat(1).st_size > LOG_BYTES:
                self._open()
            os.write(1, ("%s %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%S"), text)).encode())
        except OSError:
            pass  # a full disk: the jobs are more important than the log


def _redirect(path: Path) -> _DaemonLog:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return _DaemonLog(path)
