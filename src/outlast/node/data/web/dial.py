"""From a URL to a connection that takes requests for it: directly, or through the environment's proxy."""

from __future__ import annotations

import time

from outlast.node.data.troubles import Kind, Trouble
from outlast.node.data.web import addresses
from outlast.node.data.web.answer import read_head
from outlast.node.data.web.connection import Connection
from outlast.node.data.web.incoming import Incoming
from outlast.node.data.web.limits import HttpSettings
from outlast.node.data.web.proxies import BadProxy, Proxy, proxy_for
from outlast.node.data.web.url import Url


def dial(url: Url, settings: HttpSettings) -> tuple[Connection, Proxy | None]:
    """The connection, and the proxy that wants to be asked for the whole URL. Raises Trouble."""
    deadline = time.monotonic() + settings.connect_limit
    try:
        proxy = proxy_for(url)
    except BadProxy as error:
        raise Trouble(Kind.NO_ANSWER, str(error)) from None
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
        return Connection(addresses.connect(url.host, url.port, deadline), url.authority)
    try:
        plain = addresses.connect(proxy.host, proxy.port, deadline)
    except Trouble as trouble:
        raise Trouble(trouble.kind, "the proxy for %s: %s" % (url.authority, trouble.detail)) from None
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
        raise Trouble(Kind.NO_ANSWER, "the proxy %s broke the connection" % proxy.name) from None
    incoming = Incoming(connection)
    status = read_head(incoming, settings.connect_limit, deadline).status
    if status == 407:
        raise Trouble(
            Kind.REFUSED,
            "the proxy %s wants another user or password than $https_proxy gives" % proxy.name,
        )
    if status != 200 or incoming.has_rest:
        raise Trouble(
            Kind.NO_ANSWER, "the proxy %s answers %d and does not connect to %s" % (proxy.name, status, place)
        )
