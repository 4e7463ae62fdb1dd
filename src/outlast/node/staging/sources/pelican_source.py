"""The sources for `osdf:` and `pelican:` URLs: one for each cache of an object, and one for its origin.

The federation is queried at the first `open` or `version`; nothing is sent before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.http.url import Url
from outlast.node.staging.sources.base import Body
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.pelican_director import Federation, PelicanDirector
from outlast.node.staging.sources.pelican_routing import CACHES, ObjectServer, Route
from outlast.node.staging.sources.tokens import Tokens

OSDF = "osg-htc.org"


@dataclass(frozen=True)
class PelicanUrl:
    """A parsed URL of an object. `name` can be shown: it has no query and no user."""

    #: Host of the federation, with its port if it has one.
    federation: str
    path: str
    query: str
    name: str

    @staticmethod
    def parse(url: str, osdf: str = OSDF) -> PelicanUrl:
        """Parse an `osdf:` or `pelican:` URL. Raises ValueError, with a message that omits the query."""
        parts = urlsplit(url)
        if parts.scheme == "osdf":
            # osdf://some/path is as common as osdf:///some/path and means the same.
            federation, path = osdf, ("/" + parts.netloc if parts.netloc else "") + parts.path
            name = "osdf://" + path
        else:
            federation, path = parts.netloc, parts.path
            name = "pelican://%s%s" % (federation.rpartition("@")[2], path)
        if not federation or not path.strip("/"):
            raise ValueError("%s names no object: write osdf:///PATH or pelican://HOST/PATH" % name)
        checked = Url.parse("https://%s%s%s" % (federation, path, "?" + parts.query if parts.query else ""))
        return PelicanUrl(checked.authority, checked.path, checked.query, name)

    @property
    def from_origin(self) -> bool:
        """True if the query has `directread`: only the origin is used."""
        return "directread" in [pair.split("=", 1)[0] for pair in self.query.split("&")]


def sources(address: PelicanUrl, federation: Federation, tokens: Tokens) -> list[PelicanSource]:
    """Return the sources: the best cache first, the origin last; only the origin with `?directread`."""
    route = Route(PelicanDirector(federation, address.path, address.query, address.name))
    choices = range(CACHES, CACHES + 1) if address.from_origin else range(CACHES + 1)
    return [PelicanSource(address, route, choice, federation, tokens) for choice in choices]


class PelicanSource:
    """The server of one choice of a route. `name` changes to the server's once the director has named it."""

    def __init__(
        self, address: PelicanUrl, route: Route, choice: int, federation: Federation, tokens: Tokens
    ) -> None:
        role = "the origin" if choice >= CACHES else "choice %d" % (choice + 1)
        self.name = "%s (%s)" % (address.name, role)
        self._federation = Url.parse("https://" + address.federation)
        self._access = federation
        self._route = route
        self._choice = choice
        self._tokens = tokens
        self._size: int | None = None

    def open(self, start: int, stop: int | None = None) -> Body:
        server, source = self._resolve()
        try:
            if start and stop is None:
                # XRootD 5.5 sends nothing for a range without an end, so the end is given.
                stop = self._size = self._size or source.version().size
                if stop is not None and start >= stop:
                    return self._empty_body(start, stop)
            body = source.open(start, stop)
        except SourceError:
            self._route.mark_failed(server)
            raise
        self._size = body.version.size or self._size
        return _MonitoredBody(body, self._route, server)

    def _empty_body(self, start: int, size: int) -> Body:
        if start > size:
            self._size = None  # queried again next time: the file may grow again
            detail = "has a file of %d bytes now, too short for byte %d" % (size, start)
            raise SourceError(ErrorKind.CHANGED, detail, self.name)
        return _EmptyBody(size)

    def version(self) -> FileVersion:
        server, source = self._resolve()
        try:
            found = source.version()
        except SourceError:
            self._route.mark_failed(server)
            raise
        self._size = found.size
        return found

    def _resolve(self) -> tuple[ObjectServer, HttpSource]:
        server = self._route.server(self._choice)
        source = HttpSource(server.url, self._access.settings, self._tokens_for(server), trailers=True)
        self.name = source.name
        return server, source

    def _tokens_for(self, server: ObjectServer) -> Tokens:
        """Return the federation's token, restricted to this server, which its director has named."""
        url = Url.parse(server.url)
        is_for_federation = self._tokens.is_for(self._federation.host, self._federation.port)
        if not server.needs_token or not (is_for_federation or self._tokens.is_for(url.host, url.port)):
            return Tokens()
        return replace(self._tokens, hosts=("%s:%d" % (url.host, url.port),))


class _EmptyBody:
    """The body of the empty range at the end of a file, for which no request is sent."""

    def __init__(self, size: int) -> None:
        self.start = size
        self.version = FileVersion(size=size)

    def read_into(self, buffer: memoryview) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: there is no connection."""


class _MonitoredBody:
    """A body whose errors mark its server as failed."""

    def __init__(self, body: Body, route: Route, server: ObjectServer) -> None:
        self.start = body.start
        self.version = body.version
        self.close = body.close
        self._body = body
        self._route = route
        self._server = server

    def read_into(self, buffer: memoryview) -> int:
        try:
            return self._body.read_into(buffer)
        except SourceError:
            self._route.mark_failed(self._server)
            raise
