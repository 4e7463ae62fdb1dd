"""How the daemon comes to be: detached, alone in its directory, and telling its starter when it is ready."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from outlast.local_cluster.cluster import Ability
from outlast.local_cluster.daemon import Daemon
from outlast.local_cluster.processes import become_subreaper

LOG_BYTES = 1024 * 1024
#: How long to wait for a daemon that is on its way out.
LOCK_SECONDS = 5.0

READY, HELD = "ready", "held"


def main(settings: str) -> None:
    """Detach and serve. One line on stdout says what came of it: ready, held, or what went wrong."""
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
        lock = _take_lock(directory)
        if lock is None:
            _tell(report, HELD)
            os._exit(0)
        log = _redirect(directory / "daemon.log")
        become_subreaper()
        sys.path += options["path"]
        ability = Ability(
            run=_named(options["run"]),
            kill_by_token=_named(options["kill_by_token"]),
            cancel_grace=options["cancel_grace"],
            log=log,
        )
        daemon = Daemon(directory, lock, ability, options["idle"])
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        _tell(report, "%s: %s" % (type(error).__name__, error))
        os._exit(1)
    _tell(report, READY)
    gc.collect()
    gc.freeze()  # what is here now stays: jobs share its memory as long as nobody touches it
    try:
        daemon.run()
    except BaseException:
        log(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _reset_signals() -> None:
    """Jobs must not inherit what the starter's shell ignored, nohup's SIGHUP for one.

    Python ignores two by itself, whose default is to die of a closed pipe or a full file.
    """
    unchangeable = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - unchangeable:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _tell(report: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the starter did not wait; clients will find the socket
        os.write(report, line.replace("\n", " ").encode() + b"\n")
    os.close(report)


def _take_lock(directory: Path) -> int | None:
    """The descriptor that holds the place, or None if a daemon is there and well."""
    descriptor = os.open(directory / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if (directory / "socket").exists() or time.monotonic() > until:
                return None
        time.sleep(0.01)  # a lock that another process gives back sends no event


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


class _DaemonLog:
    """Two files of bounded size; stdout and stderr go there too."""

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
            pass  # a full disk: the jobs matter more than the log


def _redirect(path: Path) -> _DaemonLog:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return _DaemonLog(path)
