"""Parsers for the responses of a Pelican federation: where its director is, and which servers have an object.

discovery   https://HOST/.well-known/pelican-configuration names the director
director    DIRECTOR/PATH redirects to a cache and lists all caches in a `Link` header, the best one first
origins     DIRECTOR/api/v1.0/director/origin/PATH does the same with the servers that caches fetch from
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

from outlast.node.staging.http.url import BadUrl, Url
from outlast.untrusted_files import parse_json

DISCOVERY = "/.well-known/pelican-configuration"
ORIGINS = "/api/v1.0/director/origin"
#: Servers of one response that are used.
MAX_SERVERS = 16

_LINK = re.compile(r"<([^<>\s]+)>([^<]*)")
_PRIORITY = re.compile(r';\s*pri\s*=\s*"?(\d{1,6})\b', re.IGNORECASE)
_RELATION = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,]+))', re.IGNORECASE)


class MalformedResponse(ValueError):
    """A response that is not valid for a director. Its text contains no secrets."""


@dataclass(frozen=True)
class Directions:
    """The servers that have an object."""

    #: URLs of the object, the best server first. They may contain a query, which is never shown.
    servers: tuple[str, ...]
    needs_token: bool


def parse_discovery(body: bytes) -> str:
    """Return the director's URL, without a trailing slash. Raises MalformedResponse."""
    try:
        configuration = parse_json(body)
    except ValueError:
        raise MalformedResponse("its description of the federation is not JSON") from None
    endpoint = configuration.get("director_endpoint") if isinstance(configuration, dict) else None
    if not isinstance(endpoint, str) or not endpoint:
        raise MalformedResponse("its description of the federation names no director")
    parts = _split(endpoint)
    if parts is None or parts[0] != "https":
        raise MalformedResponse("the director that it names is not an https URL")
    return endpoint.split("?", 1)[0].split("#", 1)[0].rstrip("/")


def parse_directions(headers: Mapping[str, str]) -> Directions:
    """Return the servers that a redirect names. Keys are in lower case. Raises MalformedResponse."""
    needs_token = _needs_token(headers.get("x-pelican-namespace", ""))
    urls = _parse_links(headers.get("link", "")) or [headers.get("location", "").strip()]
    servers: list[str] = []
    for url in urls:
        parts = _split(url)
        # If a token is needed, a server without TLS is of no use: it would not get one.
        if parts is not None and url not in servers and (parts[0] == "https" or not needs_token):
            servers.append(url)
    if not servers:
        raise MalformedResponse(
            "it names no server%s" % (" with TLS, and a token is needed" if needs_token else "")
        )
    return Directions(tuple(servers[:MAX_SERVERS]), needs_token)


def _parse_links(header: str) -> list[str]:
    """Return the duplicates in a `Link` header, in the order of `pri`; those without one come last."""
    found = []
    for url, parameters in _LINK.findall(header):
        relation = _RELATION.search(parameters)
        if relation and (relation.group(1) or relation.group(2) or "").lower() != "duplicate":
            continue
        priority = _PRIORITY.search(parameters)
        found.append((int(priority.group(1)) if priority else 1_000_000, url))
    return [url for _, url in sorted(found, key=lambda entry: entry[0])]


def _needs_token(header: str) -> bool:
    return re.search(r"(?:^|[,;\s])require-token\s*=\s*\"?true\b", header, re.IGNORECASE) is not None


def _split(url: str) -> tuple[str, str] | None:
    """Return scheme and host, or None if it is not an http(s) URL."""
    try:
        parsed = Url.parse(url)
    except BadUrl:
        return None
    return (parsed.scheme, parsed.host) if parsed.port else None
