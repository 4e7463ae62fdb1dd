"""Starting a job: a fork of the daemon, without an exec, which takes a few milliseconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from outlast.local_cluster.processes import become_subreaper
from outlast.untrusted_files import open_to_append

#: Runs a work order: `outlast.node.main.run(order_path, job) -> exit code`.
RunJob = Callable[[str, str], int]

#: Signals that the daemon handles or ignores and each job resets; `daemon_main` resets all others once.
DAEMON_SIGNALS = (
    *(signal.SIGCHLD, signal.SIGTERM),
    *(signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2),
)

#: The exit code of a job that could not be set up; the reason is in its end note.
EXIT_NOT_SET_UP = 126


def start_job(
    *,
    job: str,
    order: str,
    log: str,
    environment: Mapping[str, str],
    end_note: Path,
    run: RunJob,
    record: Callable[[int], None],
) -> int:
    """Fork a job, and start its work once `record(pid)` has logged the start. Return its process id.

    If the daemon dies before that, the child exits without having done anything: the next daemon finds the
    job queued and starts it, so it never runs twice. Raises OSError.
    """
    gate_in, gate_out = os.pipe()
    # Blocked during the fork: otherwise a signal could run the daemon's handlers in the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, DAEMON_SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            os.close(gate_out)
            _run_as_job(gate_in, job, order, log, environment, end_note, run)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DAEMON_SIGNALS)
        os.close(gate_in)
    # On an error the gate is closed without a byte, and the child exits.
    with os.fdopen(gate_out, "wb", buffering=0) as gate:
        record(pid)
        with contextlib.suppress(BrokenPipeError):  # it was killed already, which `reap` notices
            gate.write(b"!")
    return pid


@dataclass(frozen=True)
class EndNote:
    """A job's own record of its end, for a daemon that is not its parent."""

    exit_code: int
    reason: str
    at: float
    monotonic: float


def read_end_note(path: Path) -> EndNote | None:
    """Return the end note, or None if the job did not write one."""
    try:
        return EndNote(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _write_end_note(path: Path, code: int, reason: str = "") -> None:
    note = EndNote(exit_code=code, reason=reason, at=time.time(), monotonic=time.monotonic())
    with contextlib.suppress(OSError):  # disk full: the parent still gets the exit status
        path.write_text(json.dumps(asdict(note)), encoding="utf-8")


def _run_as_job(
    gate: int, job: str, order: str, log: str, environment: Mapping[str, str], end_note: Path, run: RunJob
) -> NoReturn:
    code = EXIT_NOT_SET_UP
    try:
        try:
            _detach_from_daemon(gate)
            os.environ.clear()
            os.environ.update(environment)
            _redirect(log)
            become_subreaper()
        except Exception as error:
            _write_end_note(end_note, code, "the job could not be set up: %s" % error)
            os._exit(code)
        if not os.read(gate, 1):
            os._exit(code)  # the daemon died before it logged the start
        os.close(gate)
        code = _run_order(run, order, job)
        _write_end_note(end_note, code)
    finally:
        os._exit(code)


def _detach_from_daemon(gate: int) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in DAEMON_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        if int(name) > 2 and int(name) != gate:
            with contextlib.suppress(OSError):  # the descriptor of this listing
                os.close(int(name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DAEMON_SIGNALS)


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    output = open_to_append(log)  # an earlier job of the run may have put a link or a pipe there
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout, sys.stderr = _line_buffered(1), _line_buffered(2)


def _line_buffered(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _run_order(run: RunJob, order: str, job: str) -> int:
    code = 1
    try:
        code = run(order, job)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):  # a full disk must not change the exit code
        sys.stdout.flush()
        sys.stderr.flush()
    return code & 0xFF
