"""The event log of an attempt: JSON lines, from which the controller learns what happened and when."""

from __future__ import annotations

import json
import os
import time


def print_stderr(text: str) -> None:
    """One line to the job's own stderr, which may be on a full disk or closed: nobody else is left to tell.

    Past `sys.stderr`, whose unwritten buffer would change the exit code at the interpreter's end.
    """
    try:
        os.write(2, f"outlast: {text}\n".encode("utf-8", "replace"))
    except OSError:
        return


class EventLog:
    """Appends one line per event with one write. A log that cannot be written never stops a training."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._torn = False
        self._complained = False
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._complain(error)

    def write(self, event: str, **fields: object) -> None:
        self.write_at(time.time(), time.monotonic(), event, **fields)

    def write_at(self, at: float, mono: float, event: str, **fields: object) -> None:
        """For what began before the log could be opened."""
        if self._descriptor is None:
            return
        line = json.dumps({"event": event, "at": at, "mono": mono, **fields}, separators=(",", ":"))
        data = line.encode("ascii") + b"\n"
        if self._torn:
            # Half a line is on disk: end it, so that it spoils only itself.
            data = b"\n" + data
        try:
            self._torn = os.write(self._descriptor, data) != len(data)
        except OSError as error:
            self._complain(error)

    def warn(self, text: str) -> None:
        print_stderr(text)
        self.write("warning", text=text)

    def sync(self) -> None:
        if self._descriptor is None:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._complain(error)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            print_stderr(f"cannot write the event log {self._path} ({error.strerror}); the training goes on")
