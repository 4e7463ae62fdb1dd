"""What an answer's status means for a fetch."""

from __future__ import annotations

import base64
import binascii
import re
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Iterator, Mapping

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.request import Response
from outlast.node.staging.http.response import ResponseHead
from outlast.node.staging.sources.base import FileVersion

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_KINDS = {
    401: ErrorKind.REFUSED,
    403: ErrorKind.REFUSED,
    407: ErrorKind.REFUSED,
    410: ErrorKind.MISSING,
    429: ErrorKind.BUSY,
}


def trouble_of(answer: Response, source: str = "", token: str = "no token was sent") -> SourceError:
    """For a status that brings no bytes. `token` says in words which one was sent."""
    head = answer.head
    status = head.status
    retry_after = _retry_after(head.headers.get("retry-after", ""))
    kind = _KINDS.get(status, ErrorKind.SERVER_ERROR)
    detail = "%s answers %s" % (answer.who, _words(status))
    if status == 404:
        # An ingress says 404 while the server behind it starts; a Pelican server knows what it is talking of.
        kind = ErrorKind.MISSING if is_pelican(head) else ErrorKind.MISSING_FOR_NOW
    elif status == 503 and retry_after is not None:
        kind = ErrorKind.BUSY
    elif status in (401, 403):
        detail += ": " + token
    if retry_after is not None:
        detail += ", and asks to wait %.0f s" % retry_after
    return SourceError(kind, detail, source, retry_after)


def is_pelican(head: ResponseHead) -> bool:
    """Whether a part of a Pelican federation speaks for itself, not a gateway in front of it."""
    return head.headers.get("server", "").lower().startswith("pelican")


def _words(status: int) -> str:
    try:
        return "%d %s" % (status, HTTPStatus(status).phrase)
    except ValueError:
        return str(status)  # a status of its own making


def _retry_after(value: str) -> float | None:
    """Seconds; the header has those, or a date."""
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None  # absent or unreadable: it asks for nothing


# What an answer's headers say of the whole file: its size, its version, its digests.
#: Sent with HEAD. A server that knows none of them leaves them alone.
WANTED = {
    "Want-Digest": "sha-256;q=1, md5;q=0.8, sha;q=0.7, crc32c;q=0.6, adler32;q=0.3",
    "Want-Repr-Digest": "sha-256=9, md5=5, sha=4, crc32c=3, adler=2",
}

_BYTES = {"sha256": 32, "sha1": 20, "md5": 16, "crc32c": 4, "crc32": 4, "adler32": 4}
_NAMES = {"sha": "sha1", "adler": "adler32"}
_HEX = re.compile(r"[0-9a-fA-F]+")

#: `Digest: sha-256=…`, Google's `x-goog-hash: md5=…`, ownCloud's `OC-Checksum: SHA1:…`: of the whole file.
_LISTS = ("repr-digest", "digest", "x-goog-hash", "oc-checksum")
#: A digest each, of the whole file (Artifactory, S3).
_SINGLE = {
    "%s-%s" % (prefix, name): name
    for prefix in ("x-checksum", "x-amz-checksum")
    for name in ("sha256", "sha1", "md5", "crc32c", "crc32")
}
#: Of what this answer carries, which is the whole file only if it was asked for.
_CONTENT = {"content-md5": "md5"}


def version_of(headers: Mapping[str, str], size: int | None, is_whole: bool) -> FileVersion:
    etag = headers.get("etag", "")
    digests: dict[str, str] = {}
    for algorithm, text in _said(headers, is_whole):
        name = algorithm.strip().lower().replace("-", "")
        name = _NAMES.get(name, name)
        found = hexadecimal(name, text.strip())
        if found:
            digests.setdefault(name, found)
    return FileVersion(
        size=size,
        etag=etag if etag.startswith('"') else "",
        modified=headers.get("last-modified", ""),
        digests=digests,
    )


def _said(headers: Mapping[str, str], is_whole: bool) -> Iterator[tuple[str, str]]:
    lists = (*_LISTS, "content-digest") if is_whole else _LISTS
    for header in lists:
        for item in headers.get(header, "").split(","):
            algorithm, _, text = item.partition(":" if header == "oc-checksum" else "=")
            yield algorithm, text
    singles = {**_SINGLE, **_CONTENT} if is_whole else _SINGLE
    for header, algorithm in singles.items():
        yield algorithm, headers.get(header, "")


def hexadecimal(algorithm: str, text: str) -> str:
    """A digest that is written in hexadecimal, in base64 or as `:base64:`; empty if it is none.

    Servers disagree on which of them a Digest header has, so the length decides.
    """
    length = _BYTES.get(algorithm)
    if length is None or not text:
        return ""
    if len(text) == 2 * length and _HEX.fullmatch(text):
        return text.lower()
    try:
        raw = base64.b64decode(text.strip(":"), validate=True)
    except (binascii.Error, ValueError):
        raw = b""  # hexadecimal without its leading zeros, or nothing of the kind
    if len(raw) == length:
        return raw.hex()
    if length == 4 and len(text) < 8 and _HEX.fullmatch(text):
        return text.lower().rjust(8, "0")
    return ""
