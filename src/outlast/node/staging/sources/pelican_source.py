"""osdf: and pelican: URLs: a source for each of an object's caches, and one for its origin.

Who they are is asked at the first `open`: nothing is sent before something is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.url import Url
from outlast.node.staging.sources.base import Body, FileVersion
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.pelican_director import Federation, PelicanDirector
from outlast.node.staging.sources.pelican_routing import CACHES, ObjectServer, Route
from outlast.node.staging.sources.tokens import Tokens

OSDF = "osg-htc.org"


@dataclass(frozen=True)
class PelicanUrl:
    #: Host of the federation, with its port if it has one.
    federation: str
    path: str
    query: str
    name: str

    @staticmethod
    def parse(url: str, osdf: str = OSDF) -> PelicanUrl:
        """Raises ValueError, in words for the user, who may have a secret in the query."""
        parts = urlsplit(url)
        if parts.scheme == "osdf":
            # osdf://some/path is written as often as osdf:///some/path, and means the same.
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
        return "directread" in [pair.split("=", 1)[0] for pair in self.query.split("&")]


def sources(address: PelicanUrl, federation: Federation, tokens: Tokens) -> list[PelicanSource]:
    """The best cache first, the origin last; only that if the URL says `?directread`."""
    route = Route(PelicanDirector(federation, address.path, address.query, address.name))
    choices = range(CACHES, CACHES + 1) if address.from_origin else range(CACHES + 1)
    return [PelicanSource(address, route, choice, federation, tokens) for choice in choices]


class PelicanSource:
    """One choice of a route. `name` is the server's as soon as the director has named it."""

    def __init__(
        self, address: PelicanUrl, route: Route, choice: int, federation: Federation, tokens: Tokens
    ) -> None:
        role = "the origin" if choice >= CACHES else "choice %d" % (choice + 1)
        self.name = "%s (%s)" % (address.name, role)
        self._federation = Url.parse("https://" + address.federation)
        self._settings: HttpSettings = federation.settings
        self._route = route
        self._choice = choice
        self._tokens = tokens
        self._size: int | None = None

    def open(self, start: int, stop: int | None = None) -> Body:
        server, source = self._resolve()
        try:
            if start and stop is None:
                # XRootD 5.5 answers a range without an end with nothing at all, so the end is named.
                stop = self._size = self._size or source.version().size
                if stop is not None and start >= stop:
                    return self._nothing_left(start, stop)
            body = source.open(start, stop)
        except SourceError:
            self._route.failed(server)
            raise
        self._size = body.version.size or self._size
        return _Reported(body, self._route, server)

    def _nothing_left(self, start: int, size: int) -> Body:
        if start > size:
            self._size = None  # asked for anew next time: it may grow again
            detail = "has a file of %d bytes now, too short for byte %d" % (size, start)
            raise SourceError(ErrorKind.CHANGED, detail, self.name)
        return _NoServer(size)

    def version(self) -> FileVersion:
        server, source = self._resolve()
        try:
            found = source.version()
        except SourceError:
            self._route.failed(server)
            raise
        self._size = found.size
        return found

    def _resolve(self) -> tuple[ObjectServer, HttpSource]:
        server = self._route.server(self._choice)
        source = HttpSource(server.url, self._settings, self._tokens_for(server), trailers=True)
        self.name = source.name
        return server, source

    def _tokens_for(self, server: ObjectServer) -> Tokens:
        """The federation's token, for this one server, which the federation's director has named."""
        url = Url.parse(server.url)
        asked = self._tokens.is_for(self._federation.host, self._federation.port)
        if not server.needs_token or not (asked or self._tokens.is_for(url.host, url.port)):
            return Tokens()
        return replace(self._tokens, hosts=("%s:%d" % (url.host, url.port),))


class _NoServer:
    """All that is left of a file after its last byte."""

    def __init__(self, size: int) -> None:
        self.start = size
        self.version = FileVersion(size=size)

    def read_into(self, buffer: memoryview) -> int:
        return 0

    def close(self) -> None:
        """It has nothing open."""


class _Reported:
    """A body whose troubles are held against the server."""

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
            self._route.failed(self._server)
            raise
