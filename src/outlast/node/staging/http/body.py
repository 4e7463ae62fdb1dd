"""The bytes of a response's body, from a known offset of the file, with an error kind for each failure."""

from __future__ import annotations

import re
import socket
import ssl

from outlast.node.staging.errors import BeyondTheEnd, ErrorKind, SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.request import Response
from outlast.node.staging.http.response import BodyFraming, ChunkedFraming, TruncatedBody

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_EMPTY_RANGE = re.compile(r"bytes (\d{1,18})--1/(\d{1,18})")
_UNSATISFIED_RANGE = re.compile(r"bytes \*/(\d{1,18})")


class HttpBody:
    """The body of one response, as a `Body` of a source.

    `end` is the file offset at which it ends, None if unknown. `ends_early`: the response continues after
    `end`, and that part is not read.
    """

    def __init__(
        self,
        response: Response,
        framing: BodyFraming,
        start: int,
        end: int | None,
        version: FileVersion,
        settings: HttpSettings,
        ends_early: bool = False,
    ) -> None:
        self.start = start
        self.version = version
        #: The source's name, for errors.
        self.source = ""
        self._response = response
        self._framing = framing
        self._position = start
        self._end = end
        self._timeout = settings.stall_timeout
        self._ends_early = ends_early

    def read_into(self, buffer: memoryview) -> int:
        """Read at least one byte and return the count; 0 at the announced end. Raises SourceError."""
        try:
            count = self._read_next(buffer)
        except SourceError as error:
            error.source = self.source
            raise
        except TruncatedBody:
            raise self._error(ErrorKind.TRUNCATED, "closed the connection") from None
        except socket.timeout:
            raise self._error(ErrorKind.STALL, "has sent nothing for %g s" % self._timeout) from None
        except OSError as error:
            # TLS that ended without close_notify; some Python versions raise this for a reset, too.
            is_ragged = isinstance(error, ssl.SSLEOFError)
            reason = "cut off" if is_ragged else (error.strerror or str(error)).lower()
            raise self._error(ErrorKind.RESET, "broke the connection (%s)" % reason) from None
        if count == 0:
            self.close()
        return count

    def close(self) -> None:
        self._response.close()

    def _read_next(self, buffer: memoryview) -> int:
        if self._end is not None:
            left = self._end - self._position
            if left == 0:
                self._expect_end()
                return 0
            if left < len(buffer):
                buffer = buffer[:left]
        count = self._framing.read_into(buffer, self._timeout)
        if count == 0 and self._end is not None:
            raise self._error(ErrorKind.TRUNCATED, "ended its response")
        self._position += count
        return count

    def _expect_end(self) -> None:
        """Read the trailers of a chunked body, which may report a failed transfer. Raises SourceError."""
        if isinstance(self._framing, ChunkedFraming) and not self._ends_early:
            one_more = memoryview(bytearray(1))
            if self._framing.read_into(one_more, self._timeout):
                raise self._error(ErrorKind.NONSENSE, "sends more than it announced")

    def _error(self, kind: ErrorKind, what: str) -> SourceError:
        of_total = "" if self._end is None else " of %d" % (self._end - self.start)
        received = self._position - self.start
        detail = "%s %s after %d%s bytes" % (self._response.peer, what, received, of_total)
        return SourceError(kind, detail, self.source)


class _EmptyFraming:
    """The framing of a response without a body."""

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        return 0


def make_whole_body(
    response: Response, stop: int | None, version: FileVersion, settings: HttpSettings
) -> HttpBody:
    """Return the body of a response that begins at byte 0, read up to `stop` (None: to the end)."""
    size = version.size
    ends_early = stop is not None and (size is None or stop < size)
    end = stop if ends_early else size
    return HttpBody(response, response.framing(), 0, end, version, settings, ends_early)


def make_ranged_body(
    response: Response, start: int, stop: int | None, version: FileVersion, settings: HttpSettings
) -> HttpBody:
    """Return the body of a 206 response. Raises SourceError if its range is not the requested one."""
    first, end, size = parse_content_range(response)
    if first != start or end <= first or (stop is not None and end > stop):
        requested = "%d-%s" % (start, "" if stop is None else stop - 1)
        raise SourceError(
            ErrorKind.NONSENSE,
            "%s sends bytes %d-%d instead of the requested %s" % (response.peer, first, end - 1, requested),
        )
    length = response.content_length
    if length is not None and length != end - first:
        raise SourceError(
            ErrorKind.NONSENSE,
            "%s announces %d bytes for a range of %d" % (response.peer, length, end - first),
        )
    # A server may send less than was requested. Those bytes are good, but reading past them is TRUNCATED.
    expected_ends = [offset for offset in (stop, size) if offset is not None]
    expected_end = end if size is None else min(expected_ends)
    return HttpBody(response, response.framing(), start, expected_end, version, settings)


def parse_content_range(response: Response) -> tuple[int, int, int | None]:
    """Return the first byte, the byte after the last, and the file's size if known. Raises SourceError."""
    found = _CONTENT_RANGE.fullmatch(response.head.headers.get("content-range", ""))
    if found is None:
        raise SourceError(
            ErrorKind.NONSENSE, "%s sends a part of the file without a valid Content-Range" % response.peer
        )
    size = None if found.group(3) == "*" else int(found.group(3))
    return int(found.group(1)), int(found.group(2)) + 1, size


def size_from_empty_range(response: Response, start: int) -> int | None:
    """Return the file's size if the response is XRootD 5.5's empty one to a range without an end, else None.

    The request must then be repeated with an explicit end.
    """
    found = _EMPTY_RANGE.fullmatch(response.head.headers.get("content-range", "").strip())
    if response.head.status != 206 or found is None:
        return None
    size = int(found.group(2))
    return size if int(found.group(1)) == start < size else None


def make_empty_body(response: Response, start: int, settings: HttpSettings) -> HttpBody:
    """Return an empty body for a 416 response at the end of the file.

    Raises SourceError if the file ends before `start`, and BeyondTheEnd if the server does not report its
    size.
    """
    found = _UNSATISFIED_RANGE.fullmatch(response.head.headers.get("content-range", ""))
    if found is None:
        raise BeyondTheEnd(
            ErrorKind.NONSENSE,
            "%s has no byte %d and does not report the size of the file" % (response.peer, start),
        )
    size = int(found.group(1))
    if size != start:
        raise SourceError(
            ErrorKind.CHANGED,
            "%s has a file of %d bytes now, too short for byte %d" % (response.peer, size, start),
        )
    return HttpBody(response, _EmptyFraming(), start, start, FileVersion(size=size), settings)
