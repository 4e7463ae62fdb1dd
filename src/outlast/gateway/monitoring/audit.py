"""The audit log: one JSON line for each decision, in a file of mode 600 that is rotated by its size.

Lines are written at once and synced by `sync`. Values are made safe to print and short; a URL loses its
query.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from outlast.filesystem import describe_error
from outlast.text import printable
from outlast.untrusted_files import open_to_append

#: The size in bytes at which a new file is begun, and how many of the old ones are kept.
LARGEST_FILE = 10 * 10**6
KEPT_FILES = 5
#: The most characters of a value and bytes of a line.
LONGEST_VALUE = 500
LONGEST_LINE = 4096
_MOST_FACTS = 30
#: Lines that wait for a log that cannot be written.
MOST_WAITING = 10_000
#: Lines after which the file is synced even if nobody calls `sync`.
_BATCH = 100
_QUERY = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s?#\"'<>]*)[?#][^\s\"'<>]*")
_USER_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@]*@")


#: Called with an event and its facts.
Listener = Callable[[str, Mapping[str, object]], None]


class Audit:
    """The audit log at `path`. Used by one thread. Raises OSError where it cannot be written."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        largest: int = LARGEST_FILE,
        kept: int = KEPT_FILES,
    ) -> None:
        self._path = path
        self._clock = clock
        self._largest = largest
        self._kept = kept
        self._descriptor: int | None = None
        self._size = 0
        self._unsynced = 0

    def write(self, event: str, /, **facts: object) -> None:
        """Append a line about a decision. Facts that are None are left out. Raise OSError."""
        self.write_at(self._clock(), event, facts)

    def write_at(self, at: float, event: str, facts: dict[str, object]) -> None:
        """Append a line about a decision that was made at a time. Raise OSError."""
        line = audit_line(event, at, facts)
        descriptor = self._open()
        if self._size and self._size + len(line) > self._largest:
            descriptor = self._rotate()
        written = os.write(descriptor, line)
        self._size += written
        self._unsynced += 1
        if written < len(line):
            # The disk is full. The next line begins on a line of its own.
            self.close()
            raise OSError(errno.ENOSPC, "only a part of a line could be written", str(self._path))
        if self._unsynced >= _BATCH:
            self.sync()

    def sync(self) -> None:
        """Make all lines durable; cheap if there are no new ones."""
        if self._descriptor is not None and self._unsynced:
            os.fsync(self._descriptor)
            self._unsynced = 0

    def close(self) -> None:
        """Sync and close the file; the next line opens it again."""
        if self._descriptor is not None:
            try:
                self.sync()
            finally:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            descriptor = open_to_append(self._path)
            try:
                os.fchmod(descriptor, 0o600)
                self._size = _end_line(descriptor, self._path)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return self._descriptor

    def _rotate(self) -> int:
        """Rename the file to NAME.1, the one before to NAME.2 and so on, and begin a new one."""
        self.close()
        for number in range(self._kept, 0, -1):
            older = self._numbered(number - 1) if number > 1 else self._path
            if os.path.lexists(older):
                older.replace(self._numbered(number))
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name("%s.%d" % (self._path.name, number))


class AuditBuffer:
    """Lines about decisions, which are written by `flush`, after the commit.

    A log that cannot be written stops nothing: the lines wait, the oldest are dropped, and `trouble` has why.
    """

    def __init__(
        self,
        audit: Audit,
        clock: Callable[[], float] = time.time,
        listener: Listener = lambda event, facts: None,
    ) -> None:
        self._audit = audit
        self._clock = clock
        self._listener = listener
        self._lines: deque[tuple[str, float, dict[str, object]]] = deque(maxlen=MOST_WAITING)
        #: Why the log cannot be written; empty: it can.
        self.trouble = ""

    def write(self, event: str, /, **facts: object) -> None:
        """Add a line about a decision, and tell the listener."""
        self._listener(event, facts)
        self._lines.append((event, self._clock(), facts))

    def flush(self) -> None:
        """Write the lines, durably."""
        try:
            while self._lines:
                event, at, facts = self._lines[0]
                self._audit.write_at(at, event, facts)
                self._lines.popleft()
            self._audit.sync()
        except OSError as error:
            self.trouble = describe_error(error)
        else:
            self.trouble = ""

    def close(self) -> None:
        """Write the lines and close the log."""
        self.flush()
        try:
            self._audit.close()
        except OSError as error:
            self.trouble = describe_error(error)


def audit_line(event: str, now: float, facts: dict[str, object]) -> bytes:
    """Return a decision as a line of JSON of at most `LONGEST_LINE` bytes."""
    values: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000),
        "event": _safe_value(event),
    }
    for name, value in list(facts.items())[:_MOST_FACTS]:
        if value is not None:
            values[name] = _safe_value(value)
    line = _encode(values)
    while len(line) > LONGEST_LINE:
        longest = max(values, key=lambda name: len(str(values[name])))
        values[longest] = str(values[longest])[: len(str(values[longest])) // 2] + "…"
        line = _encode(values)
    return line


def without_query(text: str) -> str:
    """Return text in which URLs have neither a query, which may be a signature, nor a user."""
    return _QUERY.sub(r"\1", _USER_IN_URL.sub(r"\1", text))


def _safe_value(value: object) -> object:
    if isinstance(value, (bool, int, float)):
        return value if abs(value) < 1e15 else str(value)[:40]
    if isinstance(value, bytes):
        value = value[: 4 * LONGEST_VALUE].decode("utf-8", "backslashreplace")
    text = without_query(str(value)[: 4 * LONGEST_VALUE])
    text = printable(text.encode("utf-8", "backslashreplace").decode())
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _encode(values: dict[str, object]) -> bytes:
    return json.dumps(values, ensure_ascii=True, allow_nan=False).encode() + b"\n"


def _end_line(descriptor: int, path: Path) -> int:
    """End the last line if a crash or a full disk cut it, and return the size."""
    size = os.fstat(descriptor).st_size
    if size:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                size += os.write(descriptor, b"\n")
    return size
