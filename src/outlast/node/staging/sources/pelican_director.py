"""Queries to a federation for the servers of an object: discovery, then the director. No token is sent."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Callable, Mapping
from urllib.parse import urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.headers import REDIRECTS, error_for_status
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.request import Response, send_request
from outlast.node.staging.http.url import BadUrl, Url
from outlast.node.staging.sources import pelican_responses
from outlast.node.staging.sources.pelican_responses import Directions, MalformedResponse

#: Maximum size of the description of a federation in bytes; real ones have a few hundred.
MAX_DESCRIPTION = 256 * 1024
#: Seconds after which a description expires.
MAX_AGE = 3600.0
#: Redirects that are followed to the description; all must lead to https.
MAX_REDIRECTS = 3


class Federation:
    """A federation, named by the host that describes it. Shared by its sources, also between threads."""

    def __init__(
        self, host: str, settings: HttpSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.host = host
        self.settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._endpoint = ""
        self._discovered_at = 0.0

    def director(self) -> str:
        """Return the URL of the director, without a trailing slash. Raises SourceError."""
        with self._lock:
            if not self._endpoint or self._clock() - self._discovered_at > MAX_AGE:
                self._endpoint = self._discover()
                self._discovered_at = self._clock()
            return self._endpoint

    def forget(self) -> None:
        """Repeat the discovery next time: the director does not respond and may have moved."""
        with self._lock:
            self._endpoint = ""

    def _discover(self) -> str:
        url = Url.parse("https://%s%s" % (self.host, pelican_responses.DISCOVERY))
        name = "federation %s" % self.host
        for _ in range(MAX_REDIRECTS + 1):
            response = _send_get(url, self.settings, name)
            if not response.is_local:
                # A federation elsewhere must not lead to services of this node: neither its director nor the
                # servers that it names.
                self.settings = replace(self.settings, redirected_by=response.peer)
            status, headers = response.head.status, response.head.headers
            if status in REDIRECTS:
                response.close()
                url = _redirect_target(url, headers, name)
                continue
            if status != 200:
                response.close()
                # A 404 here is about the description, not about the file.
                raise _as_temporary(error_for_status(response, name))
            try:
                return pelican_responses.parse_discovery(response.read_body(MAX_DESCRIPTION, self.settings))
            except MalformedResponse as error:
                raise SourceError(ErrorKind.NONSENSE, "%s: %s" % (response.peer, error), name) from None
        raise SourceError(
            ErrorKind.NONSENSE,
            "redirected more than %d times, last to %s" % (MAX_REDIRECTS, url.authority),
            name,
        )


class PelicanDirector:
    """Queries to the director for one object; implements `pelican_routing.DirectorClient`."""

    def __init__(self, federation: Federation, path: str, query: str, name: str) -> None:
        self._federation = federation
        self._path = path
        self._query = query
        self._name = name

    def caches(self) -> Directions:
        return self._query_director("")

    def origins(self) -> Directions:
        return self._query_director(pelican_responses.ORIGINS)

    def _query_director(self, prefix: str) -> Directions:
        query = "?" + self._query if self._query else ""
        url = Url.parse(self._federation.director() + prefix + self._path + query)
        try:
            response = _send_get(url, self._federation.settings, self._name)
        except SourceError:
            self._federation.forget()
            raise
        response.close()
        if response.head.status not in REDIRECTS:
            if response.head.status < 400:
                detail = "%s responds with %d instead of a redirect" % (response.peer, response.head.status)
                raise SourceError(ErrorKind.NONSENSE, detail, self._name)
            raise error_for_status(response, self._name)
        try:
            found = pelican_responses.parse_directions(response.head.headers)
        except MalformedResponse as error:
            raise SourceError(
                ErrorKind.NONSENSE, "the director %s: %s" % (response.peer, error), self._name
            ) from None
        servers = tuple(url if urlsplit(url).query else url + query for url in found.servers)
        return Directions(servers, found.needs_token)


def _send_get(url: Url, settings: HttpSettings, name: str) -> Response:
    try:
        return send_request("GET", url, {}, settings)
    except SourceError as error:
        raise SourceError(error.kind, error.detail, name, error.retry_after) from None


def _redirect_target(url: Url, headers: Mapping[str, str], name: str) -> Url:
    try:
        target = url.join(headers.get("location", ""))
    except BadUrl as error:
        raise SourceError(
            ErrorKind.NONSENSE, "%s redirects to an invalid URL: %s" % (url.authority, error), name
        ) from None
    if not target.is_tls:
        raise SourceError(ErrorKind.UNTRUSTED, "%s redirects to plain http" % url.authority, name)
    return target


def _as_temporary(error: SourceError) -> SourceError:
    """Return the error, with MISSING replaced by MISSING_FOR_NOW."""
    if error.kind is not ErrorKind.MISSING:
        return error
    return SourceError(ErrorKind.MISSING_FOR_NOW, error.detail, error.source, error.retry_after)
