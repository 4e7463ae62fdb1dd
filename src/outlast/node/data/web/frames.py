"""Where a body ends: after so many bytes, after the last chunk, or where the connection does.

A frame gives at least one byte, or 0 at the end that was announced. All raise OSError.
"""

from __future__ import annotations

import re
import time
from typing import Protocol

from outlast.node.data.troubles import Kind, Trouble
from outlast.node.data.web.answer import read_fields
from outlast.node.data.web.incoming import Ended, Incoming, TooLong
from outlast.node.data.web.limits import LINE

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_SECRET = re.compile(r"[^\s,;:'\"()]{24,}")


class CutOff(Exception):
    """The connection ended before the body did."""


class Frame(Protocol):
    def read_into(self, buffer: memoryview, seconds: float) -> int:
        """Raises OSError, CutOff, and Trouble for what the server says or should not have said."""


class Counted:
    def __init__(self, incoming: Incoming, length: int) -> None:
        self._incoming = incoming
        self._left = length

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        if self._left == 0:
            return 0
        count = self._incoming.read_into(
            buffer[: self._left] if self._left < len(buffer) else buffer, seconds
        )
        if count == 0:
            raise CutOff
        self._left -= count
        return count


class UntilClosed:
    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        return self._incoming.read_into(buffer, seconds)


class Chunked:
    """Ends only with its last chunk and a trailer that does not say that the transfer failed."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._chunk = Counted(incoming, 0)
        self._begun = False
        self._ended = False

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        if self._ended:
            return 0
        count = self._chunk.read_into(buffer, seconds)
        if count:
            return count
        try:
            size = self._next_size(time.monotonic() + seconds)
            if size:
                self._chunk = Counted(self._incoming, size)
                return self._chunk.read_into(buffer, seconds)
            trailers = read_fields(self._incoming, time.monotonic() + seconds)
        except Ended:
            raise CutOff from None
        except TooLong:
            raise self._nonsense("a chunk or trailer without end") from None
        status = trailers.get("x-transfer-status", "200")
        if not re.match(r"200\b", status):
            raise Trouble(
                Kind.SERVER_ERROR,
                "%s gave up in the middle and said so at the end: %s"
                % (self._incoming.connection.who, harmless(status)),
            )
        self._ended = True
        return 0

    def _next_size(self, deadline: float) -> int:
        if self._begun and self._incoming.read_line(LINE, deadline):
            raise self._nonsense("a chunk of another length than it announced")
        self._begun = True
        found = _SIZE.fullmatch(self._incoming.read_line(LINE, deadline))
        if not found:
            raise self._nonsense("something that is no chunk")
        return int(found.group(1), 16)

    def _nonsense(self, what: str) -> Trouble:
        return Trouble(Kind.NONSENSE, "%s sends %s" % (self._incoming.connection.who, what))


def harmless(text: str) -> str:
    """What a server says, short, printable, and without anything as long as a token it might be quoting."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _SECRET.sub("…", printable)[:120]
