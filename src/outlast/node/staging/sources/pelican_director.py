"""Asking a federation where an object is: discovery, then its director. Nothing secret is sent to either."""

from __future__ import annotations

import threading
import time
from typing import Callable, Mapping
from urllib.parse import urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.headers import REDIRECTS, trouble_of
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.request import Response, ask
from outlast.node.staging.http.url import BadUrl, Url
from outlast.node.staging.sources import pelican_responses
from outlast.node.staging.sources.pelican_responses import Directions, MalformedResponse

#: Bytes of the description of a federation; real ones have a few hundred.
MOST_DESCRIPTION = 256 * 1024
#: Seconds that a description is good for.
FRESH = 3600.0
#: Redirects of the description that are followed, each of them to https.
HOPS = 3


class Federation:
    """A federation by the host that describes it. Shared by all that is fetched from it; safe in threads."""

    def __init__(
        self, host: str, settings: HttpSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.host = host
        self.settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._endpoint = ""
        self._found = 0.0

    def director(self) -> str:
        """The URL of its director, without a slash at the end. Raises Trouble."""
        with self._lock:
            if not self._endpoint or self._clock() - self._found > FRESH:
                self._endpoint = self._discover()
                self._found = self._clock()
            return self._endpoint

    def forget(self) -> None:
        """The director does not answer: it may have moved."""
        with self._lock:
            self._endpoint = ""

    def _discover(self) -> str:
        url = Url.parse("https://%s%s" % (self.host, pelican_responses.DISCOVERY))
        name = "federation %s" % self.host
        for _ in range(HOPS + 1):
            answer = _ask(url, self.settings, name)
            status, headers = answer.head.status, answer.head.headers
            if status in REDIRECTS:
                answer.close()
                url = _followed(url, headers, name)
                continue
            if status != 200:
                answer.close()
                trouble = trouble_of(answer, name)
                # Whatever is not at home there, it is not the file that nobody has.
                raise _passing(trouble)
            try:
                return pelican_responses.director_of(answer.content(MOST_DESCRIPTION, self.settings))
            except MalformedResponse as error:
                raise SourceError(ErrorKind.NONSENSE, "%s: %s" % (answer.who, error), name) from None
        raise SourceError(ErrorKind.NONSENSE, "%s redirects again and again" % url.authority, name)


class PelicanDirector:
    """What the director says of one object; see `route.Director`."""

    def __init__(self, federation: Federation, path: str, query: str, name: str) -> None:
        self._federation = federation
        self._path = path
        self._query = query
        self._name = name

    def caches(self) -> Directions:
        return self._ask("")

    def origins(self) -> Directions:
        return self._ask(pelican_responses.ORIGINS)

    def _ask(self, prefix: str) -> Directions:
        query = "?" + self._query if self._query else ""
        url = Url.parse(self._federation.director() + prefix + self._path + query)
        try:
            answer = _ask(url, self._federation.settings, self._name)
        except SourceError:
            self._federation.forget()
            raise
        answer.close()
        if answer.head.status not in REDIRECTS:
            if answer.head.status < 400:
                detail = "%s answers %d instead of a redirect" % (answer.who, answer.head.status)
                raise SourceError(ErrorKind.NONSENSE, detail, self._name)
            raise trouble_of(answer, self._name)
        try:
            found = pelican_responses.directions(answer.head.headers)
        except MalformedResponse as error:
            raise SourceError(
                ErrorKind.NONSENSE, "the director %s: %s" % (answer.who, error), self._name
            ) from None
        servers = tuple(url if urlsplit(url).query else url + query for url in found.servers)
        return Directions(servers, found.needs_token)


def _ask(url: Url, settings: HttpSettings, name: str) -> Response:
    try:
        return ask("GET", url, {}, settings)
    except SourceError as trouble:
        raise SourceError(trouble.kind, trouble.detail, name, trouble.retry_after) from None


def _followed(url: Url, headers: Mapping[str, str], name: str) -> Url:
    try:
        found = url.join(headers.get("location", ""))
    except BadUrl as error:
        raise SourceError(
            ErrorKind.NONSENSE, "%s redirects to nowhere: %s" % (url.authority, error), name
        ) from None
    if not found.is_tls:
        raise SourceError(ErrorKind.UNTRUSTED, "%s redirects to plain http" % url.authority, name)
    return found


def _passing(trouble: SourceError) -> SourceError:
    if trouble.kind is not ErrorKind.MISSING:
        return trouble
    return SourceError(ErrorKind.MISSING_FOR_NOW, trouble.detail, trouble.source, trouble.retry_after)
