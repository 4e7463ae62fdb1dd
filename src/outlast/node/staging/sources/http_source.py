"""The source for http and https URLs: one request per `open`, with redirects and without retries."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Mapping

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.http.body import (
    HttpBody,
    make_empty_body,
    make_ranged_body,
    make_whole_body,
    parse_content_range,
    size_from_empty_range,
)
from outlast.node.staging.http.headers import REDIRECTS, WANT_DIGEST_HEADERS, error_for_status, parse_version
from outlast.node.staging.http.http_settings import MAX_REDIRECTS, HttpSettings
from outlast.node.staging.http.request import Response, send_request
from outlast.node.staging.http.response import CloseFraming, redact
from outlast.node.staging.http.url import BadUrl, Url
from outlast.node.staging.sources.tokens import Tokens

#: Suffixes of compressed files: servers often label these with a Content-Encoding.
_COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".z")
#: The response to HEAD if only GET is allowed, for example by a signed URL.
_NO_HEAD = frozenset({400, 403, 405, 501})
#: Errors that a request for digests causes if XRootD has no checksums, or has to compute them first. The file
#: may exist nevertheless.
_NO_DIGEST = frozenset({ErrorKind.MISSING_FOR_NOW, ErrorKind.NO_ANSWER, ErrorKind.SERVER_ERROR})


class HttpSource:
    """A file on an HTTP server.

    `headers` are sent to every host that a redirect leads to, so they must not contain secrets. `trailers`
    requests XRootD's trailer, which reports whether the transfer failed.
    """

    def __init__(
        self,
        url: str,
        settings: HttpSettings | None = None,
        tokens: Tokens | None = None,
        headers: Mapping[str, str] | None = None,
        trailers: bool = False,
    ) -> None:
        """Raises BadUrl."""
        self._url = Url.parse(url)
        self._settings = settings or HttpSettings()
        self._tokens = tokens or Tokens()
        self._headers = dict(headers or {})
        self._trailers = trailers
        self.name = self._url.name

    def __repr__(self) -> str:
        return "HttpSource(%s)" % self.name

    def open(self, start: int, stop: int | None = None) -> HttpBody:
        headers: dict[str, str] = {}
        if start or stop is not None:
            headers["Range"] = "bytes=%d-%s" % (start, "" if stop is None else stop - 1)
        elif self._trailers:
            # Never with a range: XRootD up to 5.6.1 would send the framing of chunks as content.
            headers.update({"X-Transfer-Status": "true", "TE": "trailers"})
        try:
            response, token = self._follow("GET", headers)
            try:
                size = size_from_empty_range(response, start) if stop is None else None
                if size is None:
                    body = self._body(response, token, start, stop)
                    body.source = self.name
                    return body
            except BaseException:
                response.close()
                raise
            response.close()
        except SourceError as error:
            error.source = self.name
            raise
        return self.open(start, size)

    def version(self) -> FileVersion:
        try:
            response, token = self._follow("HEAD", WANT_DIGEST_HEADERS)
            response.close()
            if response.head.status == 200:
                return parse_version(response.head.headers, response.content_length, is_whole=True)
            if response.head.status not in _NO_HEAD:
                raise error_for_status(response, self.name, token)
        except SourceError as error:
            error.source = self.name
            if error.kind not in _NO_DIGEST:
                raise
        body = self.open(0, 1)
        body.close()
        return body.version

    def _follow(self, method: str, headers: Mapping[str, str]) -> tuple[Response, str]:
        """Send a request and follow redirects. Return the final response and a clause about its token."""
        url, settings = self._url, self._settings
        for _ in range(MAX_REDIRECTS + 1):
            # Looked up for each host: the target of a redirect must not get the token of the first host.
            token = self._tokens.token_for(url.host, url.port) if url.is_tls else None
            secret = token.authorization if token is not None else ""
            response = send_request(method, url, {**self._headers, **headers}, settings, secret)
            if response.head.status not in REDIRECTS:
                return response, token.describe(time.time()) if token is not None else self._why_no_token(url)
            if not response.is_local:
                settings = replace(settings, redirected_by=response.peer)
            response.close()
            url = _redirect_target(response, settings)
        raise SourceError(
            _kind_of_refusal(settings, ErrorKind.NONSENSE),
            "redirected more than %d times, last to %s" % (MAX_REDIRECTS, url.authority),
        )

    def _why_no_token(self, url: Url) -> str:
        if not self._tokens.is_for(url.host, url.port):
            return "no token was sent, since none is configured for this host"
        if not url.is_tls:
            return "no token was sent, since that requires https"
        return "no token was found"

    def _body(self, response: Response, token: str, start: int, stop: int | None) -> HttpBody:
        head = response.head
        if head.status == 416:
            if not start and stop is None:
                raise SourceError(
                    ErrorKind.NONSENSE, "%s responds with 416, but no range was requested" % response.peer
                )
            return make_empty_body(response, start, self._settings)
        if head.status not in (200, 206):
            raise error_for_status(response, self.name, token)
        self._refuse_compression(response)
        if head.status == 206:
            version = _without_digests(
                parse_version(head.headers, parse_content_range(response)[2], is_whole=False)
            )
            return make_ranged_body(response, start, stop, version, self._settings)
        if isinstance(response.framing(), CloseFraming) and not self._settings.allow_unknown_length:
            raise SourceError(
                ErrorKind.NONSENSE,
                "%s announces no length, so a truncated file could not be detected; pin the file's sha256 "
                "to accept it" % response.peer,
            )
        version = _without_digests(parse_version(head.headers, response.content_length, is_whole=True))
        return make_whole_body(response, stop, version, self._settings)

    def _refuse_compression(self, response: Response) -> None:
        coding = response.head.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity") and not self._url.path.lower().endswith(_COMPRESSED):
            raise SourceError(
                ErrorKind.NONSENSE,
                "%s compresses the response (%s), although the request forbids it"
                % (response.peer, redact(coding)),
            )


def _without_digests(version: FileVersion) -> FileVersion:
    # XRootD 5.5 may send, with a GET, the digest that an earlier request for another file requested.
    return replace(version, digests={})


def _kind_of_refusal(settings: HttpSettings, otherwise: ErrorKind) -> ErrorKind:
    """Return the kind of error for a redirect that is not followed: final, if a stranger chose the URL."""
    return otherwise if settings.rules is None else ErrorKind.FORBIDDEN


def _redirect_target(response: Response, settings: HttpSettings) -> Url:
    """Return the URL that a redirect leads to. Raises SourceError if it is missing, invalid or insecure."""
    location = response.head.headers.get("location", "")
    if not location:
        raise SourceError(ErrorKind.NONSENSE, "%s redirects without a Location" % response.peer)
    try:
        url = response.url.join(location)
    except BadUrl:
        raise SourceError(
            _kind_of_refusal(settings, ErrorKind.NONSENSE),
            "%s redirects to something that is not an http or https URL" % response.peer,
        ) from None
    if response.url.is_tls and not url.is_tls:
        raise SourceError(
            _kind_of_refusal(settings, ErrorKind.UNTRUSTED),
            "%s redirects from https to plain http at %s, which cannot be trusted"
            % (response.peer, url.authority),
        )
    return url
