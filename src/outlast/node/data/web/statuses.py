"""What an answer's status means for a fetch."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from outlast.node.data.troubles import Kind, Trouble
from outlast.node.data.web.answer import Head
from outlast.node.data.web.request import Answer

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_KINDS = {401: Kind.REFUSED, 403: Kind.REFUSED, 407: Kind.REFUSED, 410: Kind.MISSING, 429: Kind.BUSY}


def trouble_of(answer: Answer, source: str = "", token: str = "no token was sent") -> Trouble:
    """For a status that brings no bytes. `token` says in words which one was sent."""
    head = answer.head
    status = head.status
    retry_after = _retry_after(head.headers.get("retry-after", ""))
    kind = _KINDS.get(status, Kind.SERVER_ERROR)
    detail = "%s answers %s" % (answer.who, _words(status))
    if status == 404:
        # An ingress says 404 while the server behind it starts; a Pelican server knows what it is talking of.
        kind = Kind.MISSING if is_pelican(head) else Kind.MISSING_FOR_NOW
    elif status == 503 and retry_after is not None:
        kind = Kind.BUSY
    elif status in (401, 403):
        detail += ": " + token
    if retry_after is not None:
        detail += ", and asks to wait %.0f s" % retry_after
    return Trouble(kind, detail, source, retry_after)


def is_pelican(head: Head) -> bool:
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
