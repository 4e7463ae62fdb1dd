"""Parsed http and https URLs. Messages and logs show a URL by its `name`: no user, no query."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit

_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
#: Labels of 1 to 63 characters: the resolver and TLS raise odd errors for others. IPv6 is not checked.
_HOST = re.compile(r"[^.]{1,63}(\.[^.]{1,63})*\.?")
#: Not quoted again: the path or query may be quoted already.
_SAFE = "/%:@!$&'()*+,;=~?[]"


class BadUrl(ValueError):
    """The URL is not valid. The message is for the user and does not quote what could be a secret."""


@dataclass(frozen=True)
class Url:
    scheme: str
    host: str
    port: int
    path: str
    #: May be a signature that gives access to the file.
    query: str = field(default="", repr=False)

    @staticmethod
    def parse(text: str) -> Url:
        """Parse a URL. Raises BadUrl."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise BadUrl("a data URL has an invalid host or port") from None
        shown = "%s://%s%s" % (parts.scheme, parts.hostname or "", parts.path)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise BadUrl("%s is not an http or https URL with a host" % shown)
        if parts.username is not None or parts.password is not None:
            raise BadUrl(
                "the URL of %s contains a user or password, which everybody who sees the experiment could "
                "read: remove it and configure a token file or command in the cluster's profile" % shown
            )
        if _FORBIDDEN.search(text):
            raise BadUrl("the URL of %s contains a space or control character: write it as %%20" % shown)
        try:
            host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
        except UnicodeError:
            host = ""
        if ":" not in host and not _HOST.fullmatch(host):
            raise BadUrl("the host of %s is not a valid host name" % shown)
        return Url(
            scheme=parts.scheme,
            host=host.lower(),
            port=_PORTS[parts.scheme] if port is None else port,
            path=quote(parts.path or "/", safe=_SAFE),
            query=quote(parts.query, safe=_SAFE),
        )

    def join(self, location: str) -> Url:
        """Return the URL that a redirect's `location` leads to. Raises BadUrl."""
        try:
            joined = urljoin(self.full, location.strip())
        except ValueError:
            raise BadUrl("a redirect leads to an invalid URL") from None
        return Url.parse(joined)

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = "[%s]" % self.host if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else "%s:%d" % (host, self.port)

    @property
    def target(self) -> str:
        """Path and query, as in a request line."""
        return "%s?%s" % (self.path, self.query) if self.query else self.path

    @property
    def full(self) -> str:
        """The URL with its query, which must not be shown."""
        return "%s://%s%s" % (self.scheme, self.authority, self.target)

    @property
    def name(self) -> str:
        """The URL without its query, for messages and logs."""
        return "%s://%s%s" % (self.scheme, self.authority, self.path)
