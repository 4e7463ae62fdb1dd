"""What the training tells: lines and its newest progress in JSON for the controller, sentences for people.

Each line is one write to a file opened for appending, so lines of several processes never mix. Progress
comes several times a second for days: only the newest is kept, in a file of its own that is replaced.
Telling is never worth a training: that a file cannot be written is mentioned once.
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
from outlast.training.env import newest_progress

#: Progress is written at most once in this many seconds; the last one always.
_PROGRESS_INTERVAL = 0.25
_LONGEST_TEXT = 100


def warn(message: str) -> None:
    try:
        print("outlast: " + message, file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        # stderr is closed or gone: there is nobody to tell.
        return


def plain(value: Any) -> Any:
    """A metric as JSON can hold it, whatever it is."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    try:
        number = float(value)
        return number if math.isfinite(number) else str(number)
    except Exception:
        # Metrics come from anywhere (arrays, tensors, None); an odd one is shown, not raised.
        try:
            return str(value)[:_LONGEST_TEXT]
        except Exception:
            return type(value).__name__


def _released(value: Any) -> Any:
    """Without the graph behind it: a line that waits must not keep a step's memory alive."""
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


class ProgressLog:
    """Appends to the file `path` and replaces the one beside it; without a path it does nothing."""

    def __init__(self, path: str | None, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._last_progress = -math.inf
        self._waiting: tuple[int, int | None, Mapping[str, Any]] | None = None
        self._pid = os.getpid()
        #: Processes on two nodes may have one number.
        self._unique = secrets.token_hex(4)
        self._warned = False
        self._torn = False
        if path:
            atexit.register(self.flush)

    def tell(self, event: str, **details: Any) -> None:
        if not self._path:
            return
        try:
            self._append(self._path, _line(event, details))
        except OSError as error:
            self._mention(self._path, error)

    def _mention(self, path: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warn("progress cannot be written to %s (%s); the training goes on" % (path, error))

    def _append(self, path: str, content: bytes) -> None:
        if self._torn:
            # A full disk took half a line: the rest of this file must not be read as part of it.
            content = b"\n" + content
        with durable_files.descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
            written = os.write(fd, content)
        self._torn = written < len(content)
        if self._torn:
            raise OSError(errno.ENOSPC, "only part of a line was written")

    def progress(self, step: int, total: int | None, metrics: Mapping[str, Any]) -> None:
        if not self._path:
            return
        with self._lock:
            self._waiting = (step, total, {name: _released(value) for name, value in metrics.items()})
            if self._now() - self._last_progress >= _PROGRESS_INTERVAL:
                self._write_waiting()

    def flush(self) -> None:
        """Write the progress that waits. A forked child has its parent's, which is not its to tell."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._waiting is None or self._path is None:
            return
        step, total, metrics = self._waiting
        self._waiting = None
        self._last_progress = self._now()
        plain_metrics = {str(name): plain(value) for name, value in metrics.items()}
        content = _line("progress", {"step": step, "total": total, "metrics": plain_metrics})
        path = newest_progress(self._path)
        try:
            self._replace(path, content)
        except OSError as error:
            self._mention(path, error)

    def _replace(self, path: str, content: bytes) -> None:
        """A reader finds the old or the new one, whole; after a power cut perhaps none, which is no loss."""
        directory, name = os.path.split(path)
        temporary = os.path.join(directory, ".%s.%d-%s.tmp" % (name, os.getpid(), self._unique))
        try:
            with durable_files.descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                durable_files.write_all(fd, memoryview(content))
            os.rename(temporary, path)
        except OSError:
            durable_files.remove(temporary)
            raise


def _line(event: str, details: Mapping[str, Any]) -> bytes:
    line = {"event": event, **details, "at": time.time(), "mono": time.monotonic()}
    return (json.dumps(line, separators=(",", ":")) + "\n").encode("ascii")
