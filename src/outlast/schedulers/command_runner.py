"""Run a scheduler's own programs: with a timeout, without a shell, with untranslated messages."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LONGEST_MESSAGE = 500
#: Seconds between two checks for a message after which a program is ended.
_CHECK_INTERVAL = 0.25


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
    arguments: Sequence[str],
    timeout: float,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    final_words: str = "",
) -> CommandOutput:
    """Run a program and return its output; `environment` is added to this process's own.

    The program is killed once `final_words` are in its stderr: then it would only wait and try again. Raises
    CommandNotRun or CommandTimeout.
    """
    try:
        process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
        )
    except OSError as error:
        raise CommandNotRun("%s: %s" % (arguments[0], error.strerror)) from error
    with process:
        try:
            out, err = _communicate(process, stdin.encode(), timeout, final_words.encode())
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                why = "%s did not respond within %.0f s" % (arguments[0], timeout)
                raise CommandTimeout(why) from error
            raise
    return CommandOutput(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def _communicate(
    process: subprocess.Popen[bytes], stdin: bytes, timeout: float, final_words: bytes
) -> tuple[bytes, bytes]:
    """Return what the program printed. Raises TimeoutExpired."""
    if not final_words:
        return process.communicate(stdin, timeout)
    until = time.monotonic() + timeout
    pending: bytes | None = stdin
    while True:
        left = until - time.monotonic()
        try:
            return process.communicate(pending, max(0.0, min(left, _CHECK_INTERVAL)))
        except subprocess.TimeoutExpired as error:
            if final_words in (error.stderr or b""):
                process.kill()
                return process.communicate()
            if left <= _CHECK_INTERVAL:
                raise
            pending = None
