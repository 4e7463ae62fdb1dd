"""Status and headers of an answer, or trailers: read with limits on time and size, and by the letter."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from typing import Mapping, Protocol

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.connection import Connection
from outlast.node.staging.http.http_settings import HEAD, LINE

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |$)")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: "100 Continue" and the like: not the answer yet.
_INTERIM = 10


@dataclass(frozen=True)
class ResponseHead:
    status: int
    #: Names in lower case; values of a name that came twice are joined with ", ".
    headers: Mapping[str, str]


def read_head(incoming: ConnectionReader, seconds: float, deadline: float) -> ResponseHead:
    """Raises Trouble. `deadline`: when `seconds` are over, which the sentence then names."""
    who = incoming.connection.who
    try:
        for _ in range(_INTERIM):
            line = incoming.read_line(HEAD, deadline)
            found = _STATUS.match(line)
            if not found:
                raise SourceError(ErrorKind.NONSENSE, "%s answers something that is not HTTP" % who)
            headers = read_fields(incoming, deadline)
            status = int(found.group(1))
            if status >= 200:
                return ResponseHead(status, headers)
    except ConnectionClosed as end:
        if end.empty:
            raise SourceError(
                ErrorKind.NO_ANSWER, "%s closed the connection without an answer" % who
            ) from None
        raise SourceError(
            ErrorKind.TRUNCATED, "%s closed the connection in the middle of its headers" % who
        ) from None
    except LineTooLong:
        raise SourceError(
            ErrorKind.NONSENSE, "%s sends headers of more than %d KiB" % (who, HEAD // 1024)
        ) from None
    except socket.timeout:
        raise SourceError(
            ErrorKind.NO_ANSWER, "%s did not answer the request within %g s" % (who, seconds)
        ) from None
    except OSError as error:
        reason = (error.strerror or "it broke off").lower()
        raise SourceError(
            ErrorKind.NO_ANSWER, "%s broke the connection before an answer: %s" % (who, reason)
        ) from None
    raise SourceError(ErrorKind.NONSENSE, "%s says again and again that its answer is to come" % who)


def read_fields(incoming: ConnectionReader, deadline: float) -> dict[str, str]:
    """Header or trailer lines up to the empty one. Raises OSError, Ended, TooLong; Trouble for nonsense."""
    fields: dict[str, str] = {}
    room = HEAD
    while True:
        try:
            line = incoming.read_line(room, deadline)
        except ConnectionClosed:
            raise ConnectionClosed(empty=False) from None  # something came before these lines
        if not line:
            return fields
        room -= len(line)
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise SourceError(
                ErrorKind.NONSENSE, "%s sends a line that is no header" % incoming.connection.who
            )
        key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
        fields[key] = "%s, %s" % (fields[key], text) if key in fields else text


# What arrives over a connection: lines first, then bytes into the caller's own buffers.
_PIECE = 16 * 1024


class LineTooLong(Exception):
    """More bytes without an end of the line, or of the headers, than there may be."""


class ConnectionClosed(Exception):
    """The connection ended inside a line; `empty`: before the first byte of it."""

    def __init__(self, empty: bool) -> None:
        super().__init__("the connection ended")
        self.empty = empty


class ConnectionReader:
    """Everything raises OSError, and socket.timeout when nothing comes in time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._rest = b""

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        """0: the connection ended."""
        if self._rest:
            count = min(len(self._rest), len(buffer))
            buffer[:count] = self._rest[:count]
            self._rest = self._rest[count:]
            return count
        return self.connection.receive_into(buffer, seconds)

    def read_line(self, limit: int, deadline: float) -> bytes:
        """Without its end. Raises TooLong, Ended."""
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if len(line) > limit:
                raise LineTooLong
            if found:
                self._rest = rest
                return line.rstrip(b"\r")
            piece = memoryview(bytearray(_PIECE))
            count = self.connection.receive_into(piece, max(0.001, deadline - time.monotonic()))
            if count == 0:
                raise ConnectionClosed(empty=not self._rest)
            self._rest += piece[:count]

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)


# Where a body ends: after so many bytes, after the last chunk, or where the connection does.
#
# A frame gives at least one byte, or 0 at the end that was announced. All raise OSError.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_SECRET = re.compile(r"[^\s,;:'\"()]{24,}")


class TruncatedBody(Exception):
    """The connection ended before the body did."""


class BodyFraming(Protocol):
    def read_into(self, buffer: memoryview, seconds: float) -> int:
        """Raises OSError, CutOff, and Trouble for what the server says or should not have said."""


class LengthFraming:
    def __init__(self, incoming: ConnectionReader, length: int) -> None:
        self._incoming = incoming
        self._left = length

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        if self._left == 0:
            return 0
        count = self._incoming.read_into(
            buffer[: self._left] if self._left < len(buffer) else buffer, seconds
        )
        if count == 0:
            raise TruncatedBody
        self._left -= count
        return count


class CloseFraming:
    def __init__(self, incoming: ConnectionReader) -> None:
        self._incoming = incoming

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        return self._incoming.read_into(buffer, seconds)


class ChunkedFraming:
    """Ends only with its last chunk and a trailer that does not say that the transfer failed."""

    def __init__(self, incoming: ConnectionReader) -> None:
        self._incoming = incoming
        self._chunk = LengthFraming(incoming, 0)
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
                self._chunk = LengthFraming(self._incoming, size)
                return self._chunk.read_into(buffer, seconds)
            trailers = read_fields(self._incoming, time.monotonic() + seconds)
        except ConnectionClosed:
            raise TruncatedBody from None
        except LineTooLong:
            raise self._nonsense("a chunk or trailer without end") from None
        status = trailers.get("x-transfer-status", "200")
        if not re.match(r"200\b", status):
            raise SourceError(
                ErrorKind.SERVER_ERROR,
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

    def _nonsense(self, what: str) -> SourceError:
        return SourceError(ErrorKind.NONSENSE, "%s sends %s" % (self._incoming.connection.who, what))


def harmless(text: str) -> str:
    """What a server says, short, printable, and without anything as long as a token it might be quoting."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _SECRET.sub("…", printable)[:120]
