"""The bytes of an answer, from a known place of the file on; each way in which they stop has its name."""

from __future__ import annotations

import re
import socket
import ssl

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.request import Response
from outlast.node.staging.http.response import BodyFraming, ChunkedFraming, TruncatedBody
from outlast.node.staging.sources.base import FileVersion

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_EMPTY_RANGE = re.compile(r"bytes (\d{1,18})--1/(\d{1,18})")
_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})")


class HttpBody:
    """`goal`: where in the file it ends, None if nobody says. `is_cut`: the answer goes on after it."""

    def __init__(
        self,
        answer: Response,
        frame: BodyFraming,
        start: int,
        goal: int | None,
        version: FileVersion,
        settings: HttpSettings,
        is_cut: bool = False,
    ) -> None:
        self.start = start
        self.version = version
        #: The source's name, for its troubles.
        self.source = ""
        self._answer = answer
        self._frame = frame
        self._position = start
        self._goal = goal
        self._seconds = settings.stall_limit
        self._is_cut = is_cut

    def read_into(self, buffer: memoryview) -> int:
        try:
            count = self._next(buffer)
        except SourceError as trouble:
            trouble.source = self.source
            raise
        except TruncatedBody:
            raise self._trouble(ErrorKind.TRUNCATED, "closed the connection") from None
        except socket.timeout:
            raise self._trouble(ErrorKind.STALL, "has sent nothing for %g s" % self._seconds) from None
        except OSError as error:
            # TLS that ends without a goodbye; some Pythons call a reset that, too.
            is_cut = isinstance(error, ssl.SSLEOFError)
            reason = "cut off" if is_cut else (error.strerror or str(error)).lower()
            raise self._trouble(ErrorKind.RESET, "broke the connection (%s)" % reason) from None
        if count == 0:
            self.close()
        return count

    def close(self) -> None:
        self._answer.close()

    def _next(self, buffer: memoryview) -> int:
        if self._goal is not None:
            left = self._goal - self._position
            if left == 0:
                self._expect_end()
                return 0
            if left < len(buffer):
                buffer = buffer[:left]
        count = self._frame.read_into(buffer, self._seconds)
        if count == 0 and self._goal is not None:
            raise self._trouble(ErrorKind.TRUNCATED, "ended its answer")
        self._position += count
        return count

    def _expect_end(self) -> None:
        """A chunked body ends with its trailers: one may say that what came is not whole."""
        if isinstance(self._frame, ChunkedFraming) and not self._is_cut:
            one_more = memoryview(bytearray(1))
            if self._frame.read_into(one_more, self._seconds):
                raise self._trouble(ErrorKind.NONSENSE, "sends more than it announced")

    def _trouble(self, kind: ErrorKind, what: str) -> SourceError:
        of = "" if self._goal is None else " of %d" % (self._goal - self.start)
        came = self._position - self.start
        return SourceError(kind, "%s %s after %d%s bytes" % (self._answer.who, what, came, of), self.source)


class _EmptyBody:
    """The frame of an answer without a body."""

    def read_into(self, buffer: memoryview, seconds: float) -> int:
        return 0


def whole_body(answer: Response, stop: int | None, version: FileVersion, settings: HttpSettings) -> HttpBody:
    """Of an answer that begins at the beginning, up to `stop` where that is given."""
    size = version.size
    is_cut = stop is not None and (size is None or stop < size)
    return HttpBody(answer, answer.frame(), 0, stop if is_cut else size, version, settings, is_cut)


def ranged_body(
    answer: Response, start: int, stop: int | None, version: FileVersion, settings: HttpSettings
) -> HttpBody:
    """Raises Trouble when it is another range than the one that was asked for."""
    first, end, size = announced_range(answer)
    if first != start or end <= first or (stop is not None and end > stop):
        asked = "%d-%s" % (start, "" if stop is None else stop - 1)
        raise SourceError(
            ErrorKind.NONSENSE, "%s sends bytes %d-%d, asked for %s" % (answer.who, first, end - 1, asked)
        )
    length = answer.length
    if length is not None and length != end - first:
        raise SourceError(
            ErrorKind.NONSENSE, "%s announces %d bytes for a range of %d" % (answer.who, length, end - first)
        )
    # A server may give less than was asked for; that is good as far as it goes, but not the end.
    ends = [place for place in (stop, size) if place is not None]
    goal = end if size is None else min(ends)
    return HttpBody(answer, answer.frame(), start, goal, version, settings)


def announced_range(answer: Response) -> tuple[int, int, int | None]:
    """First byte, the one after the last, and the file's size if it is said. Raises Trouble."""
    found = _RANGE.fullmatch(answer.head.headers.get("content-range", ""))
    if found is None:
        raise SourceError(ErrorKind.NONSENSE, "%s sends a part and does not say which" % answer.who)
    size = None if found.group(3) == "*" else int(found.group(3))
    return int(found.group(1)), int(found.group(2)) + 1, size


def size_of_nothing(answer: Response, start: int) -> int | None:
    """XRootD 5.5 answers a range without an end with nothing but the file's size: the end has to be named."""
    found = _EMPTY_RANGE.fullmatch(answer.head.headers.get("content-range", "").strip())
    if answer.head.status != 206 or found is None:
        return None
    size = int(found.group(2))
    return size if int(found.group(1)) == start < size else None


def nothing_left(answer: Response, start: int, settings: HttpSettings) -> HttpBody:
    """416: there is no byte `start`. That is the end of the file, or it is another file. Raises Trouble."""
    found = _NO_RANGE.fullmatch(answer.head.headers.get("content-range", ""))
    if found is None:
        raise SourceError(
            ErrorKind.NONSENSE, "%s has no byte %d and does not say how many it has" % (answer.who, start)
        )
    size = int(found.group(1))
    if size != start:
        raise SourceError(
            ErrorKind.CHANGED,
            "%s has a file of %d bytes now, too short for byte %d" % (answer.who, size, start),
        )
    return HttpBody(answer, _EmptyBody(), start, start, FileVersion(size=size), settings)
