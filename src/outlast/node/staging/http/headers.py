"""Status and headers of a response: which error a status means, what the headers reveal about the file."""

from __future__ import annotations

import base64
import binascii
import re
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Iterator, Mapping

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.http.request import Response
from outlast.node.staging.http.response import ResponseHead

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_KIND_BY_STATUS = {
    401: ErrorKind.REFUSED,
    403: ErrorKind.REFUSED,
    407: ErrorKind.PROXY_REFUSED,
    410: ErrorKind.MISSING,
    429: ErrorKind.BUSY,
}


def error_for_status(response: Response, source: str = "", token: str = "no token was sent") -> SourceError:
    """Return the error for a status that comes without data. `token` describes the token that was sent."""
    head = response.head
    status = head.status
    retry_after = _retry_after(head.headers.get("retry-after", ""))
    kind = _KIND_BY_STATUS.get(status, ErrorKind.SERVER_ERROR)
    detail = "%s responds with %s" % (response.peer, _with_phrase(status))
    if status == 404:
        # An ingress responds with 404 while the server behind it starts; a 404 of Pelican itself is final.
        kind = ErrorKind.MISSING if is_pelican(head) else ErrorKind.MISSING_FOR_NOW
    elif status == 503 and retry_after is not None:
        kind = ErrorKind.BUSY
    elif status in (401, 403):
        detail += ": " + token
    if retry_after is not None:
        detail += ", and asks to wait %.0f s" % retry_after
    return SourceError(kind, detail, source, retry_after)


def is_pelican(head: ResponseHead) -> bool:
    """Return True if the response is from a Pelican server itself, not from a gateway in front of it."""
    return head.headers.get("server", "").lower().startswith("pelican")


def _with_phrase(status: int) -> str:
    """Return for example "404 Not Found"."""
    try:
        return "%d %s" % (status, HTTPStatus(status).phrase)
    except ValueError:
        return str(status)  # not a standard status


def _retry_after(value: str) -> float | None:
    """Return the seconds to wait, from a number or a date; None if absent or unreadable."""
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None  # treated as if the header were absent


# The version of the file, from headers

#: Sent with HEAD to request digests. Servers that do not support them ignore them.
WANT_DIGEST_HEADERS = {
    "Want-Digest": "sha-256;q=1, md5;q=0.8, sha;q=0.7, crc32c;q=0.6, adler32;q=0.3",
    "Want-Repr-Digest": "sha-256=9, md5=5, sha=4, crc32c=3, adler=2",
}

_DIGEST_BYTES = {"sha256": 32, "sha1": 20, "md5": 16, "crc32c": 4, "crc32": 4, "adler32": 4}
_ALIASES = {"sha": "sha1", "adler": "adler32"}
_HEX = re.compile(r"[0-9a-fA-F]+")

#: Lists of digests of the whole file: `Digest: sha-256=…`, Google's `x-goog-hash: md5=…`, ownCloud's
#: `OC-Checksum: SHA1:…`.
_LIST_HEADERS = ("repr-digest", "digest", "x-goog-hash", "oc-checksum")
#: Headers with one digest of the whole file each (Artifactory, S3), and its algorithm.
_SINGLE_HEADERS = {
    "%s-%s" % (prefix, name): name
    for prefix in ("x-checksum", "x-amz-checksum")
    for name in ("sha256", "sha1", "md5", "crc32c", "crc32")
}
#: Digests of this response's body: of the file only if the body is the whole file.
_CONTENT_HEADERS = {"content-md5": "md5"}


def parse_version(headers: Mapping[str, str], size: int | None, is_whole: bool) -> FileVersion:
    """Return what the headers reveal about the file. `is_whole`: the response stands for the whole file."""
    etag = headers.get("etag", "")
    digests: dict[str, str] = {}
    for algorithm, text in _find_digests(headers, is_whole):
        name = algorithm.strip().lower().replace("-", "")
        name = _ALIASES.get(name, name)
        found = digest_to_hex(name, text.strip())
        if found:
            digests.setdefault(name, found)
    return FileVersion(
        size=size,
        etag=etag if etag.startswith('"') else "",
        modified=headers.get("last-modified", ""),
        digests=digests,
    )


def _find_digests(headers: Mapping[str, str], is_whole: bool) -> Iterator[tuple[str, str]]:
    """Yield the algorithm and the digest as they are written in the headers; the digest may be empty."""
    lists = (*_LIST_HEADERS, "content-digest") if is_whole else _LIST_HEADERS
    for header in lists:
        for item in headers.get(header, "").split(","):
            algorithm, _, text = item.partition(":" if header == "oc-checksum" else "=")
            yield algorithm, text
    singles = {**_SINGLE_HEADERS, **_CONTENT_HEADERS} if is_whole else _SINGLE_HEADERS
    for header, algorithm in singles.items():
        yield algorithm, headers.get(header, "")


def digest_to_hex(algorithm: str, text: str) -> str:
    """Return a digest in lower-case hexadecimal; empty if `text` is not a digest of this algorithm.

    It may be written in hexadecimal, in base64 or as `:base64:`. Servers disagree on the encoding in a Digest
    header, so the length decides.
    """
    length = _DIGEST_BYTES.get(algorithm)
    if length is None or not text:
        return ""
    if len(text) == 2 * length and _HEX.fullmatch(text):
        return text.lower()
    try:
        raw = base64.b64decode(text.strip(":"), validate=True)
    except (binascii.Error, ValueError):
        raw = b""  # hexadecimal without leading zeros, or not a digest
    if len(raw) == length:
        return raw.hex()
    if length == 4 and len(text) < 8 and _HEX.fullmatch(text):
        return text.lower().rjust(8, "0")
    return ""
