"""Connections to the host of a URL, directly or through a proxy, within a time limit.

All addresses of a host are tried, staggered; the first that accepts wins.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import queue
import selectors
import socket
import threading
import time
from itertools import zip_longest
from typing import Any, Tuple, cast

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.connection import Connection
from outlast.node.staging.http.host_rules import is_private_address
from outlast.node.staging.http.http_settings import MAX_ADDRESSES, HttpSettings
from outlast.node.staging.http.proxies import BadProxy, Proxy, proxy_for
from outlast.node.staging.http.response import ConnectionReader, read_head
from outlast.node.staging.http.url import Url

#: Seconds after which the next address is tried beside those still pending. A network that drops, say, all
#: IPv6 packets delays the connection by no more than this.
STAGGER = 0.25

_Address = Tuple[socket.AddressFamily, Any]
_REFUSED = os.strerror(errno.ECONNREFUSED)
_CONNECT_PENDING = (0, errno.EINPROGRESS, errno.EAGAIN)


def open_connection(url: Url, settings: HttpSettings) -> tuple[Connection, Proxy | None]:
    """Return a connection for requests to `url`, with TLS if it is https. Raises SourceError.

    The proxy is returned only if it needs the full URL as the request target (plain http); else None.
    """
    deadline = time.monotonic() + settings.connect_timeout
    refusal = settings.rules.refusal(url) if settings.rules is not None else ""
    if refusal:
        raise SourceError(ErrorKind.FORBIDDEN, refusal)
    try:
        proxy = proxy_for(url)
    except BadProxy as error:
        raise SourceError(ErrorKind.NO_ANSWER, str(error)) from None
    connection = _connect_to(url, proxy, deadline, settings)
    try:
        if url.is_tls:
            if proxy is not None:
                _open_tunnel(connection, url, proxy, settings, deadline)
            connection.start_tls(url.host, settings.ca_file, deadline)
            return connection, None
    except BaseException:
        connection.close()
        raise
    return connection, proxy


def _connect_to(url: Url, proxy: Proxy | None, deadline: float, settings: HttpSettings) -> Connection:
    rules, redirected_by = settings.rules, settings.redirected_by
    if rules is not None and rules.allows_private(url):
        redirected_by = ""  # its address may be a local one, whoever leads there
    if proxy is None:
        public = rules is not None and not rules.allows_private(url)
        return Connection(connect(url.host, url.port, deadline, redirected_by, public), url.authority)
    if redirected_by and is_local_host(
        url.host
    ):  # the proxy resolves names, so only an address can be judged
        raise _local_error(url.host, redirected_by)
    try:
        plain = connect(proxy.host, proxy.port, deadline)
    except SourceError as error:
        raise SourceError(error.kind, "the proxy for %s: %s" % (url.authority, error.detail)) from None
    return Connection(plain, "%s (through the proxy %s)" % (url.authority, proxy.name), via_proxy=True)


def _open_tunnel(
    connection: Connection, url: Url, proxy: Proxy, settings: HttpSettings, deadline: float
) -> None:
    """Ask the proxy to forward the connection to the URL's host, without reading it. Raises SourceError."""
    host = "[%s]" % url.host if ":" in url.host else url.host
    target = "%s:%d" % (host, url.port)
    lines = ["CONNECT %s HTTP/1.1" % target, "Host: " + target]
    if proxy.authorization:
        lines.append("Proxy-Authorization: " + proxy.authorization)
    try:
        connection.send("\r\n".join([*lines, "", ""]).encode("ascii"), settings.connect_timeout)
    except OSError:
        raise SourceError(ErrorKind.NO_ANSWER, "the proxy %s broke the connection" % proxy.name) from None
    reader = ConnectionReader(connection)
    status = read_head(reader, settings.connect_timeout, deadline).status
    refused = proxy.error_if_refused(status)
    if refused is not None:
        raise refused
    if status != 200 or reader.has_buffered:
        raise SourceError(
            ErrorKind.NO_ANSWER,
            "the proxy %s responds with %d and does not connect to %s" % (proxy.name, status, target),
        )


def connect(
    host: str, port: int, deadline: float, redirected_by: str = "", public: bool = False
) -> socket.socket:
    """Return a connected, non-blocking socket. `deadline` is a time.monotonic() value. Raises SourceError.

    `redirected_by` is explained in `HttpSettings`. With `public`, only addresses are used that are reachable
    from the whole internet. The name is resolved once: what is checked is what is connected to.
    """
    started = time.monotonic()
    waiting = resolve(host, port, deadline)[::-1]
    if public:
        waiting = [one for one in waiting if not is_private_address(str(one[1][0]))]
        if not waiting:
            raise SourceError(ErrorKind.FORBIDDEN, "the address of %s is not a public one" % host)
    if redirected_by:
        waiting = [(family, address) for family, address in waiting if not is_local_address(str(address[0]))]
        if not waiting:
            raise _local_error(host, redirected_by)
    reason = ""
    opened: list[socket.socket] = []
    winner = None
    try:
        with selectors.DefaultSelector() as selector:
            while (waiting or selector.get_map()) and time.monotonic() < deadline:
                if waiting:
                    attempt, reason = _start_connecting(waiting.pop(), reason)
                    if attempt is None:
                        continue
                    opened.append(attempt)
                    selector.register(attempt, selectors.EVENT_WRITE)
                left = deadline - time.monotonic()
                for key, _ in selector.select(max(0.0, min(STAGGER, left) if waiting else left)):
                    ready = cast(socket.socket, key.fileobj)
                    selector.unregister(ready)
                    code = ready.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code == 0:
                        winner = ready
                        return winner
                    reason = os.strerror(code)
    finally:
        for attempt in opened:
            if attempt is not winner:
                attempt.close()
    address = "%s:%d" % ("[%s]" % host if ":" in host else host, port)
    if reason == _REFUSED:
        raise SourceError(ErrorKind.NO_ANSWER, "connection refused by %s" % address)
    if reason:
        raise SourceError(ErrorKind.NO_ANSWER, "no connection to %s: %s" % (address, reason.lower()))
    elapsed = time.monotonic() - started
    detail = "%s does not respond: no connection within %.3g s" % (address, elapsed)
    raise SourceError(ErrorKind.NO_ANSWER, detail)


def is_local_address(text: str) -> bool:
    """Return True for an address of only this machine or its link: loopback, link-local, unspecified."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_local_host(host: str) -> bool:
    """Return True for such an address, and for the name localhost."""
    return is_local_address(host) or host == "localhost" or host.endswith(".localhost")


def _local_error(host: str, redirected_by: str) -> SourceError:
    detail = "%s leads to %s, an address of this machine or its link, where it is not followed"
    return SourceError(ErrorKind.UNTRUSTED, detail % (redirected_by, host))


def _start_connecting(address: _Address, reason: str) -> tuple[socket.socket | None, str]:
    """Return a socket that is connecting, or None, and the latest failure: a new one, or `reason`."""
    family, socket_address = address
    try:
        attempt = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # a kernel without IPv6
        return None, reason or str(error.strerror)
    attempt.setblocking(False)
    code = attempt.connect_ex(socket_address)
    if code in _CONNECT_PENDING:
        return attempt, reason
    attempt.close()
    return None, os.strerror(code)


def resolve(host: str, port: int, deadline: float) -> list[_Address]:
    """Return the addresses of `host`, IPv4 and IPv6 alternating. Raises SourceError.

    The system's resolver has longer timeouts than ours and cannot be interrupted, so it runs in a thread that
    is abandoned at the deadline.
    """
    results: queue.Queue[list[_Address] | OSError] = queue.Queue()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            results.put([(family, address) for family, _, _, _, address in found])
        except OSError as error:
            results.put(error)

    threading.Thread(target=look_up, name="resolver", daemon=True).start()
    try:
        result = results.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise SourceError(
            ErrorKind.NO_ANSWER, "no address for %s: the name service does not respond" % host
        ) from None
    if isinstance(result, OSError):
        raise SourceError(
            ErrorKind.NO_ANSWER, "no address for %s: %s" % (host, (result.strerror or "unknown").lower())
        )
    ipv6 = [address for address in result if address[0] == socket.AF_INET6]
    others = [address for address in result if address[0] != socket.AF_INET6]
    pairs = zip_longest(ipv6, others) if result and result[0] in ipv6 else zip_longest(others, ipv6)
    return [address for pair in pairs for address in pair if address is not None][:MAX_ADDRESSES]
