"""One request, one answer. Redirects are not followed, nothing is retried."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Mapping

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.connect import dial
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.response import (
    BodyFraming,
    ChunkedFraming,
    CloseFraming,
    ConnectionReader,
    LengthFraming,
    ResponseHead,
    TruncatedBody,
    read_head,
)
from outlast.node.staging.http.url import Url

_COUNT = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Response:
    url: Url
    head: ResponseHead
    incoming: ConnectionReader

    @property
    def length(self) -> int | None:
        """What Content-Length says. Raises Trouble."""
        text = self.head.headers.get("content-length")
        if text is None:
            return None
        values = {value.strip() for value in text.split(",")}
        if len(values) > 1 or not _COUNT.fullmatch(min(values)):
            raise SourceError(ErrorKind.NONSENSE, "%s sends a Content-Length that is no length" % self.who)
        return int(min(values))

    def frame(self) -> BodyFraming:
        """How the body ends. Raises Trouble."""
        coding = self.head.headers.get("transfer-encoding", "").strip().lower()
        if coding == "chunked":
            return ChunkedFraming(self.incoming)
        if coding not in ("", "identity"):
            raise SourceError(ErrorKind.NONSENSE, "%s sends in a coding that nobody asked for" % self.who)
        length = self.length
        return CloseFraming(self.incoming) if length is None else LengthFraming(self.incoming, length)

    def content(self, limit: int, settings: HttpSettings) -> bytes:
        """All of a small body; closes the connection. Raises Trouble, also for more than `limit` bytes."""
        buffer = memoryview(bytearray(limit + 1))
        filled = 0
        deadline = time.monotonic() + settings.first_byte_limit + settings.stall_limit
        try:
            frame = self.frame()
            while filled <= limit and time.monotonic() < deadline:
                count = frame.read_into(buffer[filled:], settings.stall_limit)
                if count == 0:
                    return bytes(buffer[:filled])
                filled += count
        except TruncatedBody:
            raise SourceError(
                ErrorKind.TRUNCATED, "%s ended after %d bytes of its answer" % (self.who, filled)
            ) from None
        except OSError:
            raise SourceError(
                ErrorKind.RESET, "%s broke off in the middle of its answer" % self.who
            ) from None
        finally:
            self.close()
        if filled > limit:
            raise SourceError(
                ErrorKind.NONSENSE, "%s answers more than the %d bytes expected" % (self.who, limit)
            )
        raise SourceError(ErrorKind.STALL, "%s takes too long over a short answer" % self.who)

    @property
    def who(self) -> str:
        return self.incoming.connection.who

    def close(self) -> None:
        self.incoming.connection.close()


def ask(
    method: str, url: Url, headers: Mapping[str, str], settings: HttpSettings, secret: str = ""
) -> Response:
    """`secret` is the value of Authorization; it is sent over TLS or not at all. Raises Trouble."""
    connection, proxy = dial(url, settings)
    try:
        target = url.target if proxy is None else url.whole
        fields = {
            "Host": url.authority,
            "User-Agent": "outlast",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
        }
        fields.update(headers)
        connection_tokens = ["close"]
        if "TE" in fields:
            connection_tokens.append("TE")
        fields["Connection"] = ", ".join(connection_tokens)
        if secret and url.is_tls:
            fields["Authorization"] = secret
        if proxy is not None and proxy.authorization:
            fields["Proxy-Authorization"] = proxy.authorization
        lines = ["%s %s HTTP/1.1" % (method, target), *("%s: %s" % pair for pair in fields.items())]
        deadline = time.monotonic() + settings.first_byte_limit
        try:
            connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"), settings.first_byte_limit)
        except OSError as error:
            reason = (error.strerror or "it broke off").lower()
            raise SourceError(
                ErrorKind.NO_ANSWER, "%s did not take the request: %s" % (connection.who, reason)
            ) from None
        incoming = ConnectionReader(connection)
        return Response(url, read_head(incoming, settings.first_byte_limit, deadline), incoming)
    except BaseException:
        connection.close()
        raise
