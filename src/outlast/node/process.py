"""Starting a program of the user in its own session, and collecting its exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from typing import Mapping, Sequence

from outlast.node import process_cleanup


class CannotStart(Exception):
    """The command does not exist or is not a program. The text is for the user."""


class Child:
    """A started program. Its process group contains its descendants, except those that leave the group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.ended = False
        #: Exactly one of the two is set once it has ended and its status is known.
        self.code: int | None = None
        self.signal: int | None = None

    def reap(self) -> bool:
        """Reap every child that has ended, adopted orphans too. Return True if this one has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.ended = True
                break
            if pid == 0:
                break
            if pid == self.pid:
                self._record(status)
        return self.ended

    def send(self, number: int) -> None:
        """Send a signal to the whole process group."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(self.pid, number)

    def _record(self, status: int) -> None:
        self.ended = True
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            self._process.returncode = -self.signal
        else:
            self.code = os.WEXITSTATUS(status)
            self._process.returncode = self.code


def start(command: Sequence[str], environment: Mapping[str, str], directory: str, output: int) -> Child:
    """Start `command` with stdout and stderr to the descriptor `output`. Raises CannotStart."""
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=environment,
            start_new_session=True,
            # Code between fork and exec is safe because this process has only one thread.
            preexec_fn=lambda: process_cleanup.die_with_parent(parent),  # noqa: PLW1509
        )
    except (OSError, ValueError, IndexError) as error:
        raise CannotStart(_explain(command, error, environment)) from error
    return Child(process)


def _explain(command: Sequence[str], error: Exception, environment: Mapping[str, str]) -> str:
    """Return a sentence for the user that says why the command cannot be started."""
    if not command:
        return "there is no command to start"
    name = command[0]
    number = error.errno if isinstance(error, OSError) else None
    path = environment.get("PATH")
    if number == errno.EACCES and os.sep not in name and shutil.which(name, os.F_OK, path) is None:
        number = errno.ENOENT  # a directory on PATH that cannot be entered gives EACCES, too
    if number == errno.ENOENT:
        if os.sep in name:
            return f"{name} cannot be started: no such file, or the program in its first line does not exist"
        return f"{name} cannot be started: no program of that name is on PATH on this node"
    if number == errno.EACCES:
        return f"{name} cannot be started: it is not executable (chmod +x {name})"
    if number == errno.ENOEXEC:
        return (
            f"{name} cannot be started: it is not a program for this machine, or a script without a #! line"
        )
    return f"{name} cannot be started: {error}"


def signal_name(number: int) -> str:
    """Return a name such as SIGTERM, or "signal 99" for an unknown number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
