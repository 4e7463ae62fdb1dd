"""A host's name becomes a connected socket: the first of its addresses that answers, in bounded time."""

from __future__ import annotations

import errno
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
from outlast.node.staging.http.http_settings import ADDRESSES, HttpSettings
from outlast.node.staging.http.proxies import BadProxy, Proxy, proxy_for
from outlast.node.staging.http.response import ConnectionReader, read_head
from outlast.node.staging.http.url import Url

#: Seconds after which the next address is tried beside those that have not answered: a network that swallows
#: one kind of packets costs no more than this.
STAGGER = 0.25

_Found = Tuple[socket.AddressFamily, Any]
_REFUSED = os.strerror(errno.ECONNREFUSED)
_ON_ITS_WAY = (0, errno.EINPROGRESS, errno.EAGAIN)


def connect(host: str, port: int, deadline: float) -> socket.socket:
    """A connected socket, non-blocking. `deadline` is one of time.monotonic(). Raises Trouble."""
    begun = time.monotonic()
    waiting = resolve(host, port, deadline)[::-1]
    said = ""
    opened: list[socket.socket] = []
    winner = None
    try:
        with selectors.DefaultSelector() as selector:
            while (waiting or selector.get_map()) and time.monotonic() < deadline:
                if waiting:
                    attempt, said = _begin(waiting.pop(), said)
                    if attempt is None:
                        continue
                    opened.append(attempt)
                    selector.register(attempt, selectors.EVENT_WRITE)
                left = deadline - time.monotonic()
                for key, _ in selector.select(max(0.0, min(STAGGER, left) if waiting else left)):
                    ready = cast(socket.socket, key.fileobj)
                    selector.unregister(ready)
                    error = ready.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error == 0:
                        winner = ready
                        return winner
                    said = os.strerror(error)
    finally:
        for attempt in opened:
            if attempt is not winner:
                attempt.close()
    place = "%s:%d" % ("[%s]" % host if ":" in host else host, port)
    if said == _REFUSED:
        raise SourceError(ErrorKind.NO_ANSWER, "connection refused by %s" % place)
    if said:
        raise SourceError(ErrorKind.NO_ANSWER, "no connection to %s: %s" % (place, said.lower()))
    spent = time.monotonic() - begun
    raise SourceError(ErrorKind.NO_ANSWER, "%s does not answer: no connection in %.3g s" % (place, spent))


def _begin(found: _Found, said: str) -> tuple[socket.socket | None, str]:
    family, address = found
    try:
        begun = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # a kernel without IPv6
        return None, said or str(error.strerror)
    begun.setblocking(False)
    code = begun.connect_ex(address)
    if code in _ON_ITS_WAY:
        return begun, said
    begun.close()
    return None, os.strerror(code)


def resolve(host: str, port: int, deadline: float) -> list[_Found]:
    """Its addresses, both families in turn. Raises Trouble.

    The resolver has limits of its own, longer than ours, and cannot be interrupted: it runs in a thread that
    nobody waits for.
    """
    answers: queue.Queue[list[_Found] | OSError] = queue.Queue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put([(family, address) for family, _, _, _, address in found])
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, name="resolver", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise SourceError(
            ErrorKind.NO_ANSWER, "no address for %s: the name service does not answer" % host
        ) from None
    if isinstance(answer, OSError):
        raise SourceError(
            ErrorKind.NO_ANSWER, "no address for %s: %s" % (host, (answer.strerror or "unknown").lower())
        )
    six = [found for found in answer if found[0] == socket.AF_INET6]
    others = [found for found in answer if found[0] != socket.AF_INET6]
    pairs = zip_longest(six, others) if answer and answer[0] in six else zip_longest(others, six)
    return [found for pair in pairs for found in pair if found is not None][:ADDRESSES]


# From a URL to a connection that takes requests for it: directly, or through the environment's proxy.
def dial(url: Url, settings: HttpSettings) -> tuple[Connection, Proxy | None]:
    """The connection, and the proxy that wants to be asked for the whole URL. Raises Trouble."""
    deadline = time.monotonic() + settings.connect_limit
    try:
        proxy = proxy_for(url)
    except BadProxy as error:
        raise SourceError(ErrorKind.NO_ANSWER, str(error)) from None
    connection = _reach(url, proxy, deadline)
    try:
        if url.is_tls:
            if proxy is not None:
                _tunnel(connection, url, proxy, settings, deadline)
            connection.secure(url.host, settings.ca_file, deadline)
            return connection, None
    except BaseException:
        connection.close()
        raise
    return connection, proxy


def _reach(url: Url, proxy: Proxy | None, deadline: float) -> Connection:
    if proxy is None:
        return Connection(connect(url.host, url.port, deadline), url.authority)
    try:
        plain = connect(proxy.host, proxy.port, deadline)
    except SourceError as trouble:
        raise SourceError(trouble.kind, "the proxy for %s: %s" % (url.authority, trouble.detail)) from None
    return Connection(plain, "%s (through the proxy %s)" % (url.authority, proxy.name))


def _tunnel(connection: Connection, url: Url, proxy: Proxy, settings: HttpSettings, deadline: float) -> None:
    """What follows goes to the host itself: the proxy passes it on unread."""
    host = "[%s]" % url.host if ":" in url.host else url.host
    place = "%s:%d" % (host, url.port)
    lines = ["CONNECT %s HTTP/1.1" % place, "Host: " + place]
    if proxy.authorization:
        lines.append("Proxy-Authorization: " + proxy.authorization)
    try:
        connection.send("\r\n".join([*lines, "", ""]).encode("ascii"), settings.connect_limit)
    except OSError:
        raise SourceError(ErrorKind.NO_ANSWER, "the proxy %s broke the connection" % proxy.name) from None
    incoming = ConnectionReader(connection)
    status = read_head(incoming, settings.connect_limit, deadline).status
    if status == 407:
        raise SourceError(
            ErrorKind.REFUSED,
            "the proxy %s wants another user or password than $https_proxy gives" % proxy.name,
        )
    if status != 200 or incoming.has_rest:
        raise SourceError(
            ErrorKind.NO_ANSWER,
            "the proxy %s answers %d and does not connect to %s" % (proxy.name, status, place),
        )
