"""The log of a training process: events and newest progress as JSON for the controller, warnings for people.

Each event is one write to a file opened for appending, so lines of several processes never mix. Progress is
reported several times a second for days, so only the newest is kept, in a file that is replaced. A log that
cannot be written never stops the training; it causes one warning.
"""

from __future__ import annotations

import atexit
import errno
import json
import math
import os
import secrets
import sys
import threading
import time
from typing import Any, Callable, Mapping

from outlast.training.checkpoints import durable_files
from outlast.training.env import newest_progress_path
from outlast.untrusted_files import open_to_append, remove

#: Minimum seconds between two writes of progress; the last progress is always written.
_PROGRESS_INTERVAL = 0.25
_MAX_TEXT_LENGTH = 100


def warn(message: str) -> None:
    """Print a warning to stderr; do nothing if stderr is closed."""
    try:
        print("outlast: " + message, file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return


def to_json_value(value: Any) -> Any:
    """Return a metric as a finite float or a short string, whatever its type."""
    if isinstance(value, str):
        return value[:_MAX_TEXT_LENGTH]
    try:
        number = float(value)
        return number if math.isfinite(number) else str(number)
    except Exception:
        # Metrics can be any object (array, tensor, None); one that is no number is shown as text.
        try:
            return str(value)[:_MAX_TEXT_LENGTH]
        except Exception:
            return type(value).__name__


def _detached(value: Any) -> Any:
    """Return a tensor without its autograd graph, which would keep a step's memory alive."""
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


class ProgressLog:
    """Appends events to the file `path` and replaces the progress file beside it.

    Without a path it does nothing.
    """

    def __init__(self, path: str | None, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._last_progress = -math.inf
        self._unwritten: tuple[int, int | None, Mapping[str, Any]] | None = None
        self._pid = os.getpid()
        #: Processes on two nodes can have the same pid.
        self._unique = secrets.token_hex(4)
        self._warned = False
        self._is_line_torn = False
        if path:
            atexit.register(self.flush)

    def write_event(self, event: str, **details: Any) -> None:
        """Append a line with this event."""
        if not self._path:
            return
        try:
            self._append(self._path, _encode(event, details))
        except OSError as error:
            self._warn_once(self._path, error)

    def _warn_once(self, path: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warn("cannot write progress to %s (%s); the training continues" % (path, error))

    def _append(self, path: str, content: bytes) -> None:
        if self._is_line_torn:
            # Only part of the last line was written (disk full): begin a new line, so this one can be read.
            content = b"\n" + content
        fd = open_to_append(path)
        try:
            written = os.write(fd, content)
        finally:
            os.close(fd)
        self._is_line_torn = written < len(content)
        if self._is_line_torn:
            raise OSError(errno.ENOSPC, "only part of a line was written")

    def progress(self, step: int, total: int | None, metrics: Mapping[str, Any]) -> None:
        """Record progress; write it if the last write was long enough ago."""
        if not self._path:
            return
        with self._lock:
            self._unwritten = (step, total, {name: _detached(value) for name, value in metrics.items()})
            if self._now() - self._last_progress >= _PROGRESS_INTERVAL:
                self._write_newest()

    def flush(self) -> None:
        """Write progress that is not written yet. Does nothing in a forked child, which has its parent's."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._write_newest()

    def _write_newest(self) -> None:
        if self._unwritten is None or self._path is None:
            return
        step, total, metrics = self._unwritten
        self._unwritten = None
        self._last_progress = self._now()
        plain_metrics = {str(name): to_json_value(value) for name, value in metrics.items()}
        content = _encode("progress", {"step": step, "total": total, "metrics": plain_metrics})
        path = newest_progress_path(self._path)
        try:
            self._replace(path, content)
        except OSError as error:
            self._warn_once(path, error)

    def _replace(self, path: str, content: bytes) -> None:
        """Replace a file atomically. It is not synced: progress lost in a power cut does no harm."""
        directory, name = os.path.split(path)
        temporary = os.path.join(directory, ".%s.%d-%s.tmp" % (name, os.getpid(), self._unique))
        try:
            with durable_files.open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                durable_files.write_all(fd, memoryview(content))
            os.rename(temporary, path)
        except OSError:
            remove(temporary)
            raise


def _encode(event: str, details: Mapping[str, Any]) -> bytes:
    line = {"event": event, **details, "at": time.time(), "mono": time.monotonic()}
    return (json.dumps(line, separators=(",", ":")) + "\n").encode("ascii")
