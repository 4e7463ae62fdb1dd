"""What the director of a Pelican federation says: where it is, and which servers have an object.

discovery   https://HOST/.well-known/pelican-configuration names the director
director    DIRECTOR/PATH redirects to a cache, and lists all caches in a `Link` header, the best one first
origins     DIRECTOR/api/v1.0/director/origin/PATH does the same with the servers that caches fetch from
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Mapping

from outlast.node.staging.http.url import BadUrl, Url

DISCOVERY = "/.well-known/pelican-configuration"
ORIGINS = "/api/v1.0/director/origin"
#: Servers of one answer that are taken note of.
MOST_SERVERS = 16

_LINK = re.compile(r"<([^<>\s]+)>([^<]*)")
_PRIORITY = re.compile(r';\s*pri\s*=\s*"?(\d{1,6})\b', re.IGNORECASE)
_RELATION = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,]+))', re.IGNORECASE)


class MalformedResponse(ValueError):
    """An answer that no director would give; a sentence without anything secret in it."""


@dataclass(frozen=True)
class Directions:
    #: URLs of the object, the best server first. They may hold a query: never shown.
    servers: tuple[str, ...]
    needs_token: bool


def director_of(body: bytes) -> str:
    """The director's URL without a slash at its end, from what discovery answered."""
    try:
        said = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise MalformedResponse("its description of the federation is no JSON") from None
    endpoint = said.get("director_endpoint") if isinstance(said, dict) else None
    if not isinstance(endpoint, str) or not endpoint:
        raise MalformedResponse("its description of the federation names no director")
    parts = _split(endpoint)
    if parts is None or parts[0] != "https":
        raise MalformedResponse("the director it names is no https URL")
    return endpoint.split("?", 1)[0].split("#", 1)[0].rstrip("/")


def directions(headers: Mapping[str, str]) -> Directions:
    """From the headers of a redirect; keys are in small letters."""
    needs_token = _needs_token(headers.get("x-pelican-namespace", ""))
    named = _linked(headers.get("link", "")) or [headers.get("location", "").strip()]
    servers: list[str] = []
    for url in named:
        parts = _split(url)
        # Where a token is needed, a server without TLS could only be asked in vain.
        if parts is not None and url not in servers and (parts[0] == "https" or not needs_token):
            servers.append(url)
    if not servers:
        raise MalformedResponse(
            "it names no server%s" % (" with TLS, and a token is needed" if needs_token else "")
        )
    return Directions(tuple(servers[:MOST_SERVERS]), needs_token)


def _linked(header: str) -> list[str]:
    """In the order of `pri`; without one, last."""
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
    """Scheme and host; None for what is no http(s) URL."""
    try:
        parsed = Url.parse(url)
    except BadUrl:
        return None
    return (parsed.scheme, parsed.host) if parsed.port else None
