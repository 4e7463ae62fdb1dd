"""The head of a response and the framing of its body, read from a connection.

Status line, headers and trailers are parsed strictly, with limits on time and size.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from typing import Mapping, Protocol

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.connection import Connection
from outlast.node.staging.http.http_settings import MAX_CHUNK_LINE, MAX_HEADER_BYTES

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |$)")
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Most interim responses ("100 Continue") before the final one.
_MAX_INTERIM = 10


@dataclass(frozen=True)
class ResponseHead:
    status: int
    #: Names are in lower case; the values of a repeated name are joined with ", ".
    headers: Mapping[str, str]


def read_head(reader: ConnectionReader, seconds: float, deadline: float) -> ResponseHead:
    """Read the head of the final response. Raises SourceError.

    `deadline` is the time.monotonic() value at which `seconds` have passed; `seconds` is for the message.
    """
    peer = reader.connection.peer
    try:
        for _ in range(_MAX_INTERIM):
            line = reader.read_line(MAX_HEADER_BYTES, deadline)
            found = _STATUS_LINE.match(line)
            if not found:
                raise SourceError(ErrorKind.NONSENSE, "%s sends a response that is not HTTP" % peer)
            headers = read_fields(reader, deadline)
            status = int(found.group(1))
            if status >= 200:
                return ResponseHead(status, headers)
    except ConnectionClosed as closed:
        if closed.before_first_byte:
            raise SourceError(
                ErrorKind.NO_ANSWER, "%s closed the connection without a response" % peer
            ) from None
        raise SourceError(
            ErrorKind.TRUNCATED, "%s closed the connection in the middle of its headers" % peer
        ) from None
    except LineTooLong:
        raise SourceError(
            ErrorKind.NONSENSE, "%s sends headers of more than %d KiB" % (peer, MAX_HEADER_BYTES // 1024)
        ) from None
    except socket.timeout:
        raise SourceError(ErrorKind.NO_ANSWER, "%s did not respond within %g s" % (peer, seconds)) from None
    except OSError as error:
        reason = (error.strerror or "the connection broke").lower()
        raise SourceError(
            ErrorKind.NO_ANSWER, "%s broke the connection before its response: %s" % (peer, reason)
        ) from None
    raise SourceError(ErrorKind.NONSENSE, "%s sends only interim responses" % peer)


def read_fields(reader: ConnectionReader, deadline: float) -> dict[str, str]:
    """Read header or trailer lines up to the empty line.

    Raises OSError, ConnectionClosed, LineTooLong; SourceError for invalid lines.
    """
    fields: dict[str, str] = {}
    room = MAX_HEADER_BYTES
    while True:
        try:
            line = reader.read_line(room, deadline)
        except ConnectionClosed:
            raise ConnectionClosed(
                before_first_byte=False
            ) from None  # the status line or a chunk came before
        if not line:
            return fields
        room -= len(line)
        name, colon, value = line.partition(b":")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise SourceError(ErrorKind.NONSENSE, "%s sends an invalid header line" % reader.connection.peer)
        key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
        fields[key] = "%s, %s" % (fields[key], text) if key in fields else text


# Lines and bytes from a connection

_READ_SIZE = 16 * 1024


class LineTooLong(Exception):
    """A line, or all headers together, exceed their size limit."""


class ConnectionClosed(Exception):
    """The connection ended within a line, or before its first byte."""

    def __init__(self, before_first_byte: bool) -> None:
        super().__init__("the connection ended")
        self.before_first_byte = before_first_byte


class ConnectionReader:
    """Reads lines, and bytes into the caller's buffers.

    All reads raise OSError, and socket.timeout if nothing arrives in time.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._buffered = b""

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        """Read at least one byte and return the count; 0 if the connection has ended."""
        if self._buffered:
            count = min(len(self._buffered), len(buffer))
            buffer[:count] = self._buffered[:count]
            self._buffered = self._buffered[count:]
            return count
        return self.connection.receive_into(buffer, seconds)

    def read_line(self, limit: int, deadline: float) -> bytes:
        """Return the next line without its line ending. Raises LineTooLong, ConnectionClosed."""
        while True:
            line, found, rest = self._buffered.partition(b"\n")
            if len(line) > limit:
                raise LineTooLong
            if found:
                self._buffered = rest
                return line.rstrip(b"\r")
            chunk = memoryview(bytearray(_READ_SIZE))
            count = self.connection.receive_into(chunk, max(0.001, deadline - time.monotonic()))
            if count == 0:
                raise ConnectionClosed(before_first_byte=not self._buffered)
            self._buffered += chunk[:count]

    @property
    def has_buffered(self) -> bool:
        """True if bytes after the last line have been received and not read."""
        return bool(self._buffered)


# Body framing: a body ends after Content-Length bytes, after its last chunk, or when the connection closes

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
#: As long as a token could be.
_POSSIBLE_SECRET = re.compile(r"[^\s,;:'\"()]{24,}")


class TruncatedBody(Exception):
    """The connection ended before the body did."""


class BodyFraming(Protocol):
    def read_into(self, buffer: memoryview, seconds: float) -> int:
        """Read at least one byte and return the count; 0 at the end of the body.

        Raises OSError, TruncatedBody; SourceError for invalid data or a failure that the server reports.
        """


class LengthFraming:
    def __init__(self, reader: ConnectionReader, length: int) -> None:
        self._reader = reader
        self._left = length

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        if self._left == 0:
            return 0
        count = self._reader.read_into(buffer[: self._left] if self._left < len(buffer) else buffer, seconds)
        if count == 0:
            raise TruncatedBody
        self._left -= count
        return count


class CloseFraming:
    """A body of unannounced length. If it is truncated, nothing shows it."""

    def __init__(self, reader: ConnectionReader) -> None:
        self._reader = reader

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        return self._reader.read_into(buffer, seconds)


class ChunkedFraming:
    """A chunked body. Its trailer may report that the transfer failed, which is an error."""

    def __init__(self, reader: ConnectionReader) -> None:
        self._reader = reader
        self._chunk = LengthFraming(reader, 0)
        self._has_chunk = False
        self._ended = False

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        if self._ended:
            return 0
        count = self._chunk.read_into(buffer, seconds)
        if count:
            return count
        try:
            size = self._read_chunk_size(time.monotonic() + seconds)
            if size:
                self._chunk = LengthFraming(self._reader, size)
                return self._chunk.read_into(buffer, seconds)
            trailers = read_fields(self._reader, time.monotonic() + seconds)
        except ConnectionClosed:
            raise TruncatedBody from None
        except LineTooLong:
            raise self._invalid("a chunk or trailer line that is too long") from None
        status = trailers.get("x-transfer-status", "200")
        if not re.match(r"200\b", status):
            raise SourceError(
                ErrorKind.SERVER_ERROR,
                "%s reports in its trailer that the transfer failed: %s"
                % (self._reader.connection.peer, redact(status)),
            )
        self._ended = True
        return 0

    def _read_chunk_size(self, deadline: float) -> int:
        if self._has_chunk and self._reader.read_line(MAX_CHUNK_LINE, deadline):
            raise self._invalid("a chunk of another length than announced")
        self._has_chunk = True
        found = _CHUNK_SIZE.fullmatch(self._reader.read_line(MAX_CHUNK_LINE, deadline))
        if not found:
            raise self._invalid("an invalid chunk header")
        return int(found.group(1), 16)

    def _invalid(self, what: str) -> SourceError:
        return SourceError(ErrorKind.NONSENSE, "%s sends %s" % (self._reader.connection.peer, what))


def redact(text: str) -> str:
    """Return a server's text for a message: short, printable, without words long enough to be a token."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _POSSIBLE_SECRET.sub("…", printable)[:120]
