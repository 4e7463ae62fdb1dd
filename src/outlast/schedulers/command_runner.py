"""Calling a scheduler's own programs: bounded in time, never through a shell, in a language we can read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class CommandNotRun(Exception):
    """The program could not be started: the scheduler has not heard of anything."""


class CommandTimeout(Exception):
    """The program took too long and was ended: the scheduler may have done what was asked, or may yet."""


@dataclass(frozen=True)
class CommandOutput:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it said went wrong, on one line."""
        said = " ".join((self.err.strip() or self.out.strip()).split())
        return said[:500] or "exit code %d without a word" % self.code


def call(
    arguments: Sequence[str], timeout: float, given: str = "", environment: Mapping[str, str] | None = None
) -> CommandOutput:
    """Run a program with `given` on its standard input."""
    try:
        done = subprocess.run(
            list(arguments),
            input=given.encode(),
            capture_output=True,
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout("%s did not answer within %.0f s" % (arguments[0], timeout)) from error
    except OSError as error:
        raise CommandNotRun("%s: %s" % (arguments[0], error.strerror)) from error
    return CommandOutput(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
