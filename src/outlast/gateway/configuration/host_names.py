"""Hosts and URLs in the gateway's files. No server is contacted."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from outlast.node.staging.http.host_rules import is_private_name
from outlast.node.staging.http.url import BadUrl, Url

_HOST = re.compile(
    r"(?P<name>[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)(:\d{1,5})?"
    r"|\[[0-9a-f:.]+\](:\d{1,5})?",
    re.IGNORECASE,
)
_EXAMPLE = "write it like data.example.org or data.example.org:8443"


def host_mistake(host: str) -> tuple[str, str]:
    """Return why this is not a host with an optional port, and a hint; two empty texts if it is."""
    if "@" in host:
        return "contains a user or password", "write the host alone"
    if "/" in host:
        return "is a URL, not a host", _EXAMPLE
    if "*" in host:
        return "has a *; every host is listed by its name", _EXAMPLE
    return ("", "") if _HOST.fullmatch(host) and len(host) <= 255 else ("is not a host", _EXAMPLE)


def name_mistake(host: str) -> tuple[str, str]:
    """Return why this is not a host without a port, and a hint."""
    text, hint = host_mistake(host)
    if not text and re.search(r":\d+$", host) and not host.endswith("]"):
        return "has a port", "write it under port:"
    return text, hint


def base_url_mistake(text: str) -> tuple[str, str]:
    """Return why this is not the URL of an application, and a hint; never quotes a password."""
    example = "write it like https://app.example.org"
    parts = urlsplit(text)
    if "@" in parts.netloc:
        return "contains a user or password", "put them into the file that credentials: names"
    try:
        url = Url.parse(text)
    except BadUrl:
        return "is not an https URL", example
    if parts.query or parts.fragment:
        return "has a query or a fragment", example
    if not url.is_tls and not is_private_name(url.host):
        return "is plain http: the password and all files could be read on the way", example
    return "", ""


def authority_of(url: str) -> str:
    """Return the host of a valid URL, with its port if that is not the usual one."""
    return Url.parse(url).authority


def port_of(url: str) -> int:
    """Return the port of a valid URL."""
    return Url.parse(url).port


def is_tls(url: str) -> bool:
    """Return True for a URL of https."""
    return urlsplit(url).scheme == "https"
