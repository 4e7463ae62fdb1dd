"""One HTTP request of the gateway's own: to an address that was checked, bounded in time and in bytes.

No redirect is followed. No error contains the URL's query, a header that was sent, or text of the server's:
a server may quote in its reply what it was sent.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.node.staging.errors import SourceError
from outlast.node.staging.http.connect import resolve
from outlast.node.staging.http.tls import BadCertificates, context_for
from outlast.node.staging.http.url import BadUrl, Url
from outlast.text import printable
from outlast.units import show_duration

#: Text that HTTP allows as the value of a header.
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
#: The most bytes of a response's status line and headers.
_MOST_HEAD = 16 * 1024
#: Statuses of the 4xx kind after which the same request may succeed later.
_TRANSIENT = frozenset({408, 425, 429})

Address = tuple[socket.AddressFamily, Any]


class WebError(Exception):
    """A request failed. `transient`: the same request may succeed later. `status`: the response's, if any."""

    def __init__(self, transient: bool, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.transient = transient
        self.text = text
        self.status = status


@dataclass(frozen=True)
class WebTimeouts:
    """Seconds: for a connection with its TLS handshake, without a byte moved, and for the whole request."""

    connect: float = 10.0
    idle: float = 30.0
    total: float = 60.0


@dataclass(frozen=True)
class WebReply:
    """The status of a response and the beginning of its body."""

    status: int
    #: Host and port of a redirect's target; empty if there is none.
    redirect: str = ""
    body: bytes = b""
    #: The body has more bytes than these.
    cut: bool = False

    def refusal(self, host: str) -> WebError | None:
        """Return the error that this status stands for; None if the request succeeded."""
        if 200 <= self.status < 300:
            return None
        if self.redirect:
            return WebError(False, f"{host} redirects to {self.redirect}, where nothing is sent", self.status)
        phrase = http.client.responses.get(self.status, "")
        transient = self.status >= 500 or self.status in _TRANSIENT
        return WebError(transient, f"{host} answers {self.status} {phrase}".rstrip(), self.status)


def addresses_of(url: Url, timeout: float) -> list[Address]:
    """Resolve the host of a URL, once for the request. Plain http is for this machine only.

    Raise WebError.
    """
    try:
        found = resolve(url.host, url.port, time.monotonic() + timeout)
    except SourceError as error:
        raise WebError(True, error.detail) from None
    if not found:
        raise WebError(True, f"no address for {url.host}")
    if not url.is_tls and not all(is_loopback(str(address[0])) for _, address in found):
        raise WebError(False, f"{url.authority} would be contacted over plain http; only https is allowed")
    return found


def is_loopback(address: str) -> bool:
    """Return True for an address of this machine only."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def request(
    method: str,
    url: Url,
    addresses: Sequence[Address],
    headers: Mapping[str, str],
    body: Iterable[bytes],
    length: int,
    *,
    timeouts: WebTimeouts,
    ca_file: Path | None = None,
    most_reply: int = 0,
) -> WebReply:
    """Send a request with a body of `length` bytes and return the reply. Raise WebError.

    Exceptions of `body` are passed on, unless the server has refused the request before its end.
    """
    _check_headers(headers)
    started = time.monotonic()
    with _connected(url, addresses, timeouts, ca_file, started) as connection:
        wire = _Wire(connection, timeouts.idle, started + timeouts.total, _MOST_HEAD + most_reply)
        client = http.client.HTTPConnection(url.host, url.port)
        client.auto_open = 0
        client.sock = wire
        try:
            broken = _send(client, method, url, headers, body, length)
            return _read_reply(client, url, most_reply, broken)
        except TimeoutError:
            waited = show_duration(time.monotonic() - started)
            raise WebError(True, f"{url.authority} did not finish the request within {waited}") from None
        except OSError as error:
            raise WebError(True, f"the connection to {url.authority} broke: {_reason(error)}") from None
        except (http.client.HTTPException, ValueError) as error:
            # Their texts quote the server.
            text = f"{url.authority} does not answer in HTTP ({type(error).__name__})"
            raise WebError(True, text) from None


def digest_header(sha256: str) -> str:
    """Return the value of a Repr-Digest header (RFC 9530) for a SHA-256 digest in hexadecimal."""
    return "sha-256=:%s:" % base64.b64encode(bytes.fromhex(sha256)).decode()


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise WebError(False, f"the header {name} would contain characters that HTTP does not allow")


def _send(
    client: http.client.HTTPConnection,
    method: str,
    url: Url,
    headers: Mapping[str, str],
    body: Iterable[bytes],
    length: int,
) -> OSError | None:
    """Send a request; return the error if the server no longer reads: it may have answered before."""
    client.putrequest(method, url.target, skip_host=True, skip_accept_encoding=True)
    fields = {"Host": url.authority, "Accept-Encoding": "identity", "Connection": "close"}
    for name, value in {**fields, **headers, "Content-Length": str(length)}.items():
        client.putheader(name, value)
    client.endheaders()
    for block in body:
        try:
            client.send(block)
        except TimeoutError:
            raise
        except OSError as error:
            return error
    return None


def _read_reply(
    client: http.client.HTTPConnection, url: Url, most_reply: int, broken: OSError | None
) -> WebReply:
    try:
        response = client.getresponse()
    except (OSError, http.client.HTTPException):
        if broken is not None:
            raise broken from None
        raise
    body = response.read(most_reply + 1) if most_reply else b""
    if most_reply and len(body) <= most_reply and response.length:
        raise WebError(True, f"{url.authority} sent only a part of its answer")
    if broken is not None and 200 <= response.status < 300:
        raise broken
    redirect = ""
    if 300 <= response.status < 400:
        redirect = _redirect_host(url, response.getheader("Location") or "")
    return WebReply(response.status, redirect, body[:most_reply], len(body) > most_reply)


def _redirect_host(url: Url, location: str) -> str:
    """Return host and port of a redirect; its path and query may contain secrets."""
    try:
        return printable(url.join(location).authority)
    except BadUrl:
        return "an invalid address"


@contextlib.contextmanager
def _connected(
    url: Url, addresses: Sequence[Address], timeouts: WebTimeouts, ca_file: Path | None, started: float
) -> Iterator[socket.socket]:
    context = _tls_context(ca_file) if url.is_tls else None
    plain = _connect(url, addresses, started + timeouts.connect)
    try:
        connection = plain
        if context is not None:
            plain.settimeout(_left(started + timeouts.connect))
            connection = context.wrap_socket(plain, server_hostname=url.host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        text = f"the certificate of {url.authority} is not trusted: {error.verify_message}"
        raise WebError(True, text) from None
    except OSError as error:
        plain.close()
        raise WebError(True, f"no TLS connection to {url.authority}: {_reason(error)}") from None
    with connection:
        yield connection


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return context_for("" if ca_file is None else str(ca_file))
    except BadCertificates as error:
        raise WebError(False, str(error)) from None


def _connect(url: Url, addresses: Sequence[Address], deadline: float) -> socket.socket:
    """Connect to the first address that accepts. Raise WebError."""
    reason = "no connection in time"
    for family, address in addresses:
        if time.monotonic() >= deadline:
            break
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # a kernel without IPv6
            reason = _reason(error)
            continue
        try:
            connection.settimeout(_left(deadline))
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            reason = _reason(error)
    raise WebError(True, f"no connection to {url.authority}: {reason}")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: OSError) -> str:
    """Return the cause in words that no server chose."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS failed").replace("_", " ").lower()
    return (error.strerror or type(error).__name__).lower()


class _Wire:
    """A connected socket for http.client: every operation has a timeout, and what is read has a limit."""

    def __init__(self, connection: socket.socket, idle: float, deadline: float, most: int) -> None:
        self._connection = connection
        self._idle = idle
        self._deadline = deadline
        self._most = most

    def sendall(self, data: bytes) -> None:
        self._arm()
        self._connection.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_WireReader(self), 4096)

    def close(self) -> None:
        """Do nothing: http.client closes before it has read the body; the socket's owner closes it."""

    def read_into(self, buffer: memoryview) -> int:
        self._arm()
        if self._most <= 0:
            raise http.client.HTTPException("the reply is too long")
        count = self._connection.recv_into(buffer[: self._most])
        self._most -= count
        return count

    def _arm(self) -> None:
        self._connection.settimeout(min(self._idle, _left(self._deadline)))


class _WireReader(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.read_into(memoryview(buffer))
