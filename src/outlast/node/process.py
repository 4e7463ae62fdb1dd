"""Starting a program of the user's in a session of its own, and learning how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from typing import Mapping, Sequence

from outlast.node import process_cleanup


class CannotStart(Exception):
    """The command is not there, or is no program. Its text is a sentence for the user."""


class Child:
    """A started program. Its process group holds all that it starts, unless that leaves the group itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.ended = False
        #: Exactly one of the two is set once it has ended and its status was learnt.
        self.code: int | None = None
        self.signal: int | None = None

    def reap(self) -> bool:
        """Collect every child that ended, orphans that came to us among them. True: this one has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.ended = True
                break
            if pid == 0:
                break
            if pid == self.pid:
                self._note(status)
        return self.ended

    def send(self, number: int) -> None:
        """Send a signal to the whole process group."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended, as the signal would have asked
            os.killpg(self.pid, number)

    def _note(self, status: int) -> None:
        self.ended = True
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            self._process.returncode = -self.signal
        else:
            self.code = os.WEXITSTATUS(status)
            self._process.returncode = self.code


def start(command: Sequence[str], environment: Mapping[str, str], directory: str, output: int) -> Child:
    """Start `command` with stdout and stderr going to the descriptor `output`."""
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
            # This process has one thread, which is what makes code between fork and exec safe.
            preexec_fn=lambda: process_cleanup.die_with_parent(parent),  # noqa: PLW1509
        )
    except (OSError, ValueError, IndexError) as error:
        raise CannotStart(_why(command, error)) from error
    return Child(process)


def _why(command: Sequence[str], error: Exception) -> str:
    if not command:
        return "there is no command to start"
    name = command[0]
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT:
        if os.sep in name:
            return f"{name} cannot be started: there is no such file, or not the program its first line names"
        return f"{name} cannot be started: no program of that name is on PATH on this node"
    if number == errno.EACCES:
        return f"{name} cannot be started: it is not executable (chmod +x {name})"
    if number == errno.ENOEXEC:
        return f"{name} cannot be started: it is no program for this machine, or a script without a #! line"
    return f"{name} cannot be started: {error}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
