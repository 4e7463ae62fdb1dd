"""The event log of an attempt: JSON lines with what happened and when, for the controller."""

from __future__ import annotations

import json
import os
import time

from outlast.untrusted_files import open_to_append


def print_stderr(text: str) -> None:
    """Write one line to the job's stderr; ignore errors, since the disk may be full or stderr closed.

    Does not use `sys.stderr`, whose unwritten buffer would change the exit code of the interpreter.
    """
    try:
        os.write(2, f"outlast: {text}\n".encode("utf-8", "replace"))
    except OSError:
        return


class EventLog:
    """Appends one line per event with one write. A log that cannot be written never stops the training."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._torn = False
        self._error_reported = False
        self._descriptor: int | None = None
        try:
            self._descriptor = open_to_append(path)
        except OSError as error:
            self._report_once(error)

    def write(self, event: str, **fields: object) -> None:
        """Append an event with the current time."""
        self.write_at(time.time(), time.monotonic(), event, **fields)

    def write_at(self, at: float, mono: float, event: str, **fields: object) -> None:
        """Append an event with a given time: seconds since the epoch, and on the monotonic clock."""
        if self._descriptor is None:
            return
        line = json.dumps({"event": event, "at": at, "mono": mono, **fields}, separators=(",", ":"))
        data = line.encode("ascii") + b"\n"
        if self._torn:
            # Half a line is on disk: end it, so that it does not damage this one.
            data = b"\n" + data
        try:
            self._torn = os.write(self._descriptor, data) != len(data)
        except OSError as error:
            self._report_once(error)

    def warn(self, text: str) -> None:
        """Write a warning to the job's stderr and to the log."""
        print_stderr(text)
        self.write("warning", text=text)

    def warn_of_files(self, text: str) -> None:
        """Write a warning about files of the training, which `explain` shows, to stderr and to the log."""
        print_stderr(text)
        self.write("files", text=text)

    def sync(self) -> None:
        if self._descriptor is None:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._report_once(error)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _report_once(self, error: OSError) -> None:
        if not self._error_reported:
            self._error_reported = True
            print_stderr(
                f"cannot write the event log {self._path} ({error.strerror}); the training continues"
            )
