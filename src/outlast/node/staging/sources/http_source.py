"""A file behind an http or https URL, as a source: one request, one body, no second try."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Mapping

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.body import (
    HttpBody,
    announced_range,
    nothing_left,
    ranged_body,
    size_of_nothing,
    whole_body,
)
from outlast.node.staging.http.headers import REDIRECTS, WANTED, trouble_of, version_of
from outlast.node.staging.http.http_settings import HOPS, HttpSettings
from outlast.node.staging.http.request import Response, ask
from outlast.node.staging.http.response import CloseFraming, harmless
from outlast.node.staging.http.url import BadUrl, Url
from outlast.node.staging.sources.base import FileVersion
from outlast.node.staging.sources.tokens import Tokens

#: A file that ends so is compressed itself; servers like to announce that as a coding of the transfer.
_COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".z")
#: HEAD is answered so where only GET is allowed, by a signed URL for example.
_NO_HEAD = frozenset({400, 403, 405, 501})
#: What a question for digests meets where XRootD has no checksums, or computes them first: the file
#: may be there all the same.
_NO_DIGEST = frozenset({ErrorKind.MISSING_FOR_NOW, ErrorKind.NO_ANSWER, ErrorKind.SERVER_ERROR})


class HttpSource:
    """`headers` go to every host on the way, so nothing in them may be secret.

    `trailers`: ask a server of XRootD's to say at the end whether the transfer failed.
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
            # Never with a range: XRootD up to 5.6.1 then sends a chunk's frame as if it were content.
            headers.update({"X-Transfer-Status": "true", "TE": "trailers"})
        try:
            answer, token = self._follow("GET", headers)
            try:
                size = size_of_nothing(answer, start) if stop is None else None
                if size is None:
                    body = self._body(answer, token, start, stop)
                    body.source = self.name
                    return body
            except BaseException:
                answer.close()
                raise
            answer.close()
        except SourceError as trouble:
            trouble.source = self.name
            raise
        return self.open(start, size)

    def version(self) -> FileVersion:
        try:
            answer, token = self._follow("HEAD", WANTED)
            answer.close()
            if answer.head.status == 200:
                return version_of(answer.head.headers, answer.length, is_whole=True)
            if answer.head.status not in _NO_HEAD:
                raise trouble_of(answer, self.name, token)
        except SourceError as trouble:
            trouble.source = self.name
            if trouble.kind not in _NO_DIGEST:
                raise
        body = self.open(0, 1)
        body.close()
        return body.version

    def _follow(self, method: str, headers: Mapping[str, str]) -> tuple[Response, str]:
        """The first answer that is no redirect, and which token went along, in words."""
        url = self._url
        for _ in range(HOPS + 1):
            # Looked up for each host: what the first one may have is nothing to the one it sends us to.
            token = self._tokens.token_for(url.host, url.port) if url.is_tls else None
            secret = token.authorization if token is not None else ""
            answer = ask(method, url, {**self._headers, **headers}, self._settings, secret)
            if answer.head.status not in REDIRECTS:
                return answer, token.state(time.time()) if token is not None else self._no_token(url)
            answer.close()
            url = _next(answer)
        raise SourceError(
            ErrorKind.NONSENSE,
            "was sent from one place to the next %d times, last to %s" % (HOPS, url.authority),
        )

    def _no_token(self, url: Url) -> str:
        if not self._tokens.is_for(url.host, url.port):
            return "no token was sent, none is meant for this host"
        if not url.is_tls:
            return "no token was sent, since that would need https"
        return "no token was found"

    def _body(self, answer: Response, token: str, start: int, stop: int | None) -> HttpBody:
        head = answer.head
        if head.status == 416:
            return nothing_left(answer, start, self._settings)
        if head.status not in (200, 206):
            raise trouble_of(answer, self.name, token)
        self._refuse_coding(answer)
        if head.status == 206:
            version = _of_body(version_of(head.headers, announced_range(answer)[2], is_whole=False))
            return ranged_body(answer, start, stop, version, self._settings)
        if isinstance(answer.frame(), CloseFraming) and not self._settings.unannounced_end:
            raise SourceError(
                ErrorKind.NONSENSE,
                "%s announces no length, so nobody could tell whether all of it came; give the file's sha256 "
                "and it is taken" % answer.who,
            )
        version = _of_body(version_of(head.headers, answer.length, is_whole=True))
        return whole_body(answer, stop, version, self._settings)

    def _refuse_coding(self, answer: Response) -> None:
        coding = answer.head.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity") and not self._url.path.lower().endswith(_COMPRESSED):
            raise SourceError(
                ErrorKind.NONSENSE,
                "%s compresses on the way (%s), asked not to" % (answer.who, harmless(coding)),
            )


def _of_body(version: FileVersion) -> FileVersion:
    """XRootD 5.5 puts the digest that an earlier request asked for, of whatever file, in an answer to GET."""
    return replace(version, digests={})


def _next(answer: Response) -> Url:
    location = answer.head.headers.get("location", "")
    if not location:
        raise SourceError(ErrorKind.NONSENSE, "%s sends elsewhere, and does not say where" % answer.who)
    try:
        url = answer.url.join(location)
    except BadUrl:
        raise SourceError(
            ErrorKind.NONSENSE, "%s sends to a place that is no http or https URL" % answer.who
        ) from None
    if answer.url.is_tls and not url.is_tls:
        raise SourceError(
            ErrorKind.UNTRUSTED,
            "%s sends from https to plain http at %s, where anybody could answer"
            % (answer.who, url.authority),
        )
    return url
