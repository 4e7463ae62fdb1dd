"""A reader for files of JSON lines that another process writes, or wrote until it was killed.

The files come from any machine and may be cut anywhere: a line that cannot be parsed is skipped, a file that
cannot be read counts as missing, and sizes are limited.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import Any, Iterable, Iterator


@dataclass(frozen=True)
class JsonLinesReader:
    """The content of a file, or its beginning and end."""

    #: When the file was last written, by the clock of its file system.
    changed: float
    content: bytes

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the objects in the order of the file."""
        return _parse(self.content.split(b"\n"))

    def last_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the objects, the last one first."""
        return _parse(reversed(self.content.split(b"\n")))

    def last_line(self) -> dict[str, Any]:
        """Return the last object; empty if the last line is torn or there is none."""
        return next(_parse(self.content.splitlines()[-1:]), {})


def _parse(texts: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def read(path: str | os.PathLike[str], head: int, tail: int) -> JsonLinesReader | None:
    """Read the file, or its first `head` and last `tail` bytes if it is longer.

    Return None if it is missing, not a regular file, or not readable now.
    """
    try:
        # Opening a pipe would block for ever; for a regular file O_NONBLOCK has no effect.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size <= head + tail:
                content = os.pread(descriptor, head + tail, 0)
            else:
                # The newline separates the two parts, which do not belong to one line.
                end = os.pread(descriptor, tail, status.st_size - tail)
                content = os.pread(descriptor, head, 0) + b"\n" + end
        finally:
            os.close(descriptor)
    except OSError:
        # It may be on another machine's file system, and readable again later.
        return None
    return JsonLinesReader(status.st_mtime, content)
