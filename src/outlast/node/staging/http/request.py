"""One request and its response. Redirects are not followed, nothing is retried."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Mapping

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.connect import is_local_address, is_local_host, open_connection
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

_DIGITS = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Response:
    """A response whose head has been read; the body is still on the connection."""

    url: Url
    head: ResponseHead
    reader: ConnectionReader

    @property
    def content_length(self) -> int | None:
        """The value of Content-Length; None if it is absent or overridden. Raises SourceError if invalid."""
        text = self.head.headers.get("content-length")
        if text is None or "transfer-encoding" in self.head.headers:
            return None
        values = {value.strip() for value in text.split(",")}
        if len(values) > 1 or not _DIGITS.fullmatch(min(values)):
            raise SourceError(ErrorKind.NONSENSE, "%s sends an invalid Content-Length" % self.peer)
        return int(min(values))

    def framing(self) -> BodyFraming:
        """Return a reader of the body that knows where it ends. Raises SourceError."""
        coding = self.head.headers.get("transfer-encoding", "").strip().lower()
        if "transfer-encoding" in self.head.headers and "content-length" in self.head.headers:
            # RFC 9112, 6.3: it ought to be handled as an error. Which of the two is right is not known.
            raise SourceError(
                ErrorKind.NONSENSE,
                "%s sends both Content-Length and Transfer-Encoding, so the end of its response is not known"
                % self.peer,
            )
        if coding == "chunked":
            return ChunkedFraming(self.reader)
        if coding not in ("", "identity"):
            raise SourceError(ErrorKind.NONSENSE, "%s sends an unsupported Transfer-Encoding" % self.peer)
        length = self.content_length
        return CloseFraming(self.reader) if length is None else LengthFraming(self.reader, length)

    def read_body(self, limit: int, settings: HttpSettings) -> bytes:
        """Return the whole of a small body and close the connection.

        Raises SourceError, also for more than `limit` bytes.
        """
        buffer = memoryview(bytearray(limit + 1))
        filled = 0
        deadline = time.monotonic() + settings.first_byte_timeout + settings.stall_timeout
        try:
            framing = self.framing()
            while filled <= limit and time.monotonic() < deadline:
                count = framing.read_into(buffer[filled:], settings.stall_timeout)
                if count == 0:
                    return bytes(buffer[:filled])
                filled += count
        except TruncatedBody:
            raise SourceError(
                ErrorKind.TRUNCATED,
                "%s closed the connection after %d bytes of its response" % (self.peer, filled),
            ) from None
        except OSError:
            raise SourceError(
                ErrorKind.RESET, "%s broke the connection in the middle of its response" % self.peer
            ) from None
        finally:
            self.close()
        if filled > limit:
            raise SourceError(
                ErrorKind.NONSENSE, "%s sends more than the expected %d bytes" % (self.peer, limit)
            )
        raise SourceError(ErrorKind.STALL, "%s takes too long to send a short response" % self.peer)

    @property
    def is_local(self) -> bool:
        """True if it comes from this machine or its link."""
        connection = self.reader.connection
        return is_local_host(self.url.host) or (
            not connection.via_proxy and is_local_address(connection.address)
        )

    @property
    def peer(self) -> str:
        """The host, as it is named in errors."""
        return self.reader.connection.peer

    def close(self) -> None:
        self.reader.connection.close()


def send_request(
    method: str, url: Url, headers: Mapping[str, str], settings: HttpSettings, secret: str = ""
) -> Response:
    """Send a request and return the response once its head has arrived. Raises SourceError.

    `secret` is the value of Authorization; it is sent only over TLS.
    """
    connection, proxy = open_connection(url, settings)
    try:
        target = url.target if proxy is None else url.full
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
        deadline = time.monotonic() + settings.first_byte_timeout
        try:
            connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"), settings.first_byte_timeout)
        except OSError as error:
            reason = (error.strerror or "the connection broke").lower()
            raise SourceError(
                ErrorKind.NO_ANSWER, "%s did not accept the request: %s" % (connection.peer, reason)
            ) from None
        reader = ConnectionReader(connection)
        head = read_head(reader, settings.first_byte_timeout, deadline)
        refused = proxy.error_if_refused(head.status) if proxy is not None else None
        if refused is not None:
            raise refused
        return Response(url, head, reader)
    except BaseException:
        connection.close()
        raise
