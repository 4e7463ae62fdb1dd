"""An http or https URL, taken apart. What may be shown of it is its `name`: no user, no query."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit

_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
#: Labels of up to 63 letters; what the resolver or TLS would choke on is none. IPv6 is left to them.
_HOST = re.compile(r"[^.]{1,63}(\.[^.]{1,63})*\.?")
#: Left as they are in a path or query that is already quoted.
_SAFE = "/%:@!$&'()*+,;=~?[]"


class BadUrl(ValueError):
    """A sentence for the user. It does not quote what could be a secret."""


@dataclass(frozen=True)
class Url:
    scheme: str
    host: str
    port: int
    path: str
    #: May be a signature that opens a file to whoever has it.
    query: str = field(default="", repr=False)

    @staticmethod
    def parse(text: str) -> Url:
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise BadUrl("a URL of data cannot be read: its host or port is no host or port") from None
        shown = "%s://%s%s" % (parts.scheme, parts.hostname or "", parts.path)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise BadUrl("%s is no http or https URL with a host" % shown)
        if parts.username is not None or parts.password is not None:
            raise BadUrl(
                "the URL of %s holds a user or password, which everybody who sees the experiment could read: "
                "leave it out and give a token by file or command in the cluster's profile" % shown
            )
        if _FORBIDDEN.search(text):
            raise BadUrl("the URL of %s holds a space or control character: write it as %%20" % shown)
        try:
            host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
        except UnicodeError:
            host = ""
        if ":" not in host and not _HOST.fullmatch(host):
            raise BadUrl("the host of %s is no name that a host can have" % shown)
        return Url(
            scheme=parts.scheme,
            host=host.lower(),
            port=_PORTS[parts.scheme] if port is None else port,
            path=quote(parts.path or "/", safe=_SAFE),
            query=quote(parts.query, safe=_SAFE),
        )

    def join(self, location: str) -> Url:
        """Where a redirect leads. Raises BadUrl."""
        try:
            whole = urljoin(self.whole, location.strip())
        except ValueError:
            raise BadUrl("a redirect leads to something that is no URL") from None
        return Url.parse(whole)

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
        return "%s?%s" % (self.path, self.query) if self.query else self.path

    @property
    def whole(self) -> str:
        """With its query: never shown."""
        return "%s://%s%s" % (self.scheme, self.authority, self.target)

    @property
    def name(self) -> str:
        return "%s://%s%s" % (self.scheme, self.authority, self.path)
