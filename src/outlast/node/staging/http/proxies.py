"""The proxy that the environment selects for a URL: http_proxy, https_proxy, all_proxy, no_proxy."""

from __future__ import annotations

import base64
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Mapping
from urllib.parse import unquote, urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.url import Url


class BadProxy(ValueError):
    """A proxy variable cannot be used. The message is for the user and does not contain the password."""


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    #: The value of Proxy-Authorization, or empty.
    authorization: str = field(default="", repr=False)
    #: The name of the environment variable that selects it.
    variable: str = ""

    @property
    def name(self) -> str:
        return "%s:%d" % (self.host, self.port)

    def error_if_refused(self, status: int) -> SourceError | None:
        """Return the error for a response in which the proxy requires a user and a password, else None."""
        if status != 407:
            return None
        problem = "does not accept the" if self.authorization else "requires a"
        return SourceError(
            ErrorKind.PROXY_REFUSED,
            "the proxy %s %s user and password in $%s: set it to http://USER:PASSWORD@%s"
            % (self.name, problem, self.variable, self.name),
        )


def proxy_for(url: Url, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """Return the proxy for `url`, or None for a direct connection. Raises BadProxy."""
    # HTTP_PROXY is ignored, as in curl: under CGI a request's `Proxy:` header sets it.
    names = ["https_proxy", "HTTPS_PROXY"] if url.is_tls else ["http_proxy"]
    for name in [*names, "all_proxy", "ALL_PROXY"]:
        value = environment.get(name, "").strip()
        if value:
            return None if _is_exempt(url, environment) else _parse(name, value)
    return None


def _parse(variable: str, value: str) -> Proxy:
    try:
        parts = urlsplit(value if "://" in value else "http://" + value)
        port = parts.port
    except ValueError:
        raise BadProxy("the proxy in $%s is not valid: write http://HOST:PORT" % variable) from None
    if parts.scheme != "http" or not parts.hostname:
        raise BadProxy(
            "the proxy in $%s is of an unsupported kind (%s:): write http://HOST:PORT"
            % (variable, parts.scheme)
        )
    authorization = ""
    if parts.username is not None:
        pair = "%s:%s" % (unquote(parts.username), unquote(parts.password or ""))
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, 80 if port is None else port, authorization, variable)


def _is_exempt(url: Url, environment: Mapping[str, str]) -> bool:
    patterns = environment.get("no_proxy", "") or environment.get("NO_PROXY", "")
    return any(_matches(url, pattern.strip().lower()) for pattern in patterns.split(",") if pattern.strip())


def _matches(url: Url, pattern: str) -> bool:
    if pattern == "*":
        return True
    try:
        return ipaddress.ip_address(url.host) in ipaddress.ip_network(pattern.strip("[]"), strict=False)
    except ValueError:
        pass  # the host or the pattern is a name, not an address
    name, _, port = pattern.partition(":")
    if port and port != str(url.port):
        return False
    domain = name.lstrip("*").lstrip(".")
    return url.host == domain or url.host.endswith("." + domain)
