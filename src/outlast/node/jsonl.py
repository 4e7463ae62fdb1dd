"""JSON lines that another process writes, or has written until it was killed: whatever of them can be read.

They come from any machine and may be cut anywhere: a line that cannot be read is passed over, a file that
cannot be read is as good as missing, and sizes are bounded.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import Any, Iterable, Iterator


@dataclass(frozen=True)
class JsonLinesReader:
    #: When the file was last written, by the clock of its file system.
    changed: float
    content: bytes

    def lines(self) -> Iterator[dict[str, Any]]:
        return _parsed(self.content.split(b"\n"))

    def last_lines(self) -> Iterator[dict[str, Any]]:
        """The last one first."""
        return _parsed(reversed(self.content.split(b"\n")))

    def last_line(self) -> dict[str, Any]:
        """Empty if it was torn, or there is none."""
        return next(_parsed(self.content.splitlines()[-1:]), {})


def _parsed(texts: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def read(path: str | os.PathLike[str], head: int, tail: int) -> JsonLinesReader | None:
    """The file, or so much of its beginning and end; None if it is missing, no file, or not readable now."""
    try:
        # A pipe would make the reader wait for ever; a regular file does not know O_NONBLOCK.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size <= head + tail:
                content = os.pread(descriptor, head + tail, 0)
            else:
                # The end of line keeps what was cut out from being read as one line with what follows.
                end = os.pread(descriptor, tail, status.st_size - tail)
                content = os.pread(descriptor, head, 0) + b"\n" + end
        finally:
            os.close(descriptor)
    except OSError:
        # It lies on another machine's file system: what cannot be read now may be readable later.
        return None
    return JsonLinesReader(status.st_mtime, content)
