"""A reader for files of JSON lines that another process writes, or wrote until it was killed.

The files come from any machine and may be cut anywhere: a line that cannot be parsed is skipped, a file that
cannot be read counts as missing, and sizes are limited: of a file with too many bytes or lines, only its
beginning and its end are read.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Iterable, Iterator

from outlast.untrusted_files import open_file, parse_json

#: More than a node program logs in a week: a heartbeat every 15 seconds.
MAX_LINES = 60_000


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
        if not text.lstrip().startswith(b"{"):
            continue  # an error of the parser takes a hundred times as long
        try:
            # Such a number is in one field; the others are still worth reading.
            line = parse_json(text, too_long=math.inf)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def read(
    path: str | os.PathLike[str], head: int, tail: int, most_lines: int = MAX_LINES
) -> JsonLinesReader | None:
    """Read the file, or its first `head` and last `tail` bytes if it is longer, `most_lines` lines at most.

    Return None if it is missing, not a regular file, or not readable now.
    """
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size <= head + tail:
                content = os.pread(file.fileno(), head + tail, 0)
            else:
                # The newline separates the two parts, which do not belong to one line.
                end = os.pread(file.fileno(), tail, status.st_size - tail)
                content = os.pread(file.fileno(), head, 0) + b"\n" + end
    except OSError:
        # It may be on another machine's file system, and readable again later.
        return None
    return JsonLinesReader(status.st_mtime, _drop_middle_lines(content, most_lines))


def _drop_middle_lines(content: bytes, most: int) -> bytes:
    """Return the first and the last lines, if there are more than `most`."""
    if content.count(b"\n") <= most:
        return content
    start, stop = 0, len(content)
    for _ in range(most // 2):
        start = content.index(b"\n", start) + 1
        stop = content.rindex(b"\n", 0, stop)
    return content[:start] + content[stop:]
