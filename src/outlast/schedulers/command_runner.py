"""Run a scheduler's own programs: with a timeout, without a shell, with untranslated messages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LONGEST_MESSAGE = 500


class CommandNotRun(Exception):
    """The program could not be started: the scheduler received nothing."""


class CommandTimeout(Exception):
    """The program took too long and was killed: the scheduler may have done the request, or may yet."""


@dataclass(frozen=True)
class CommandOutput:
    """The output of a program, and its exit code (negative: the signal that killed it)."""

    code: int
    out: str
    err: str

    @property
    def error_message(self) -> str:
        """The program's stderr, or else its stdout, on one line; never empty."""
        text = " ".join((self.err.strip() or self.out.strip()).split())
        return text[:_LONGEST_MESSAGE] or "exit code %d without a message" % self.code


def run_command(
    arguments: Sequence[str], timeout: float, stdin: str = "", environment: Mapping[str, str] | None = None
) -> CommandOutput:
    """Run a program and return its output; `environment` is added to this process's own.

    Raises CommandNotRun or CommandTimeout.
    """
    try:
        done = subprocess.run(
            list(arguments),
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout("%s did not respond within %.0f s" % (arguments[0], timeout)) from error
    except OSError as error:
        raise CommandNotRun("%s: %s" % (arguments[0], error.strerror)) from error
    return CommandOutput(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
