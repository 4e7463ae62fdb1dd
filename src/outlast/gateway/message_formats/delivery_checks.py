"""Checks of a message's properties, before its body is read."""

from __future__ import annotations

import re

from outlast.gateway.message_formats.dialects import ENVELOPE_TYPE, JSON_TYPE, RODAN, media_type
from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.requests import Delivery, FailureCode, Properties, Quarantined, RequestRefused
from outlast.gateway.settings import QueueSettings, matches
from outlast.text import printable

#: The most bytes of the name of a queue for replies.
LONGEST_REPLY_TO = 200
_EXPIRATION = re.compile(rb"\d{1,15}")
_CHARSET = re.compile(rb"charset\s*=\s*\"?([^\s\";]*)", re.IGNORECASE)
#: Encodings that leave JSON in UTF-8 as it is. Some libraries write the character set here.
_PLAIN_ENCODINGS = (b"", b"identity", b"utf-8", b"utf8", b"us-ascii", b"ascii", b"binary")


def check_answerable(delivery: Delivery, queue: QueueSettings) -> None:
    """Raise Quarantined for a message that must not be answered: damaged, or with a forbidden reply_to.

    These checks come before all others, because a refusal is an answer, too.
    """
    if delivery.properties.damaged:
        raise Quarantined("its properties could not be decoded")
    _check_reply_to(delivery.properties.reply_to or b"", queue)
    if queue.dialect == RODAN and not delivery.properties.correlation_id:
        # A waiter of Rodan's puts every answer back that has not its own correlation_id, without end.
        raise Quarantined("it has no correlation_id, without which none of Rodan's jobs takes the answer")


def _check_reply_to(reply_to: bytes, queue: QueueSettings) -> None:
    if not reply_to:
        return
    if len(reply_to) > LONGEST_REPLY_TO:
        raise Quarantined(f"reply_to has {len(reply_to)} bytes; at most {LONGEST_REPLY_TO} are accepted")
    try:
        name = reply_to.decode("utf-8")
    except UnicodeDecodeError:
        raise Quarantined("reply_to is not UTF-8") from None
    if printable(name) != name or "\t" in name:
        raise Quarantined("reply_to has a control character")
    if name in (queue.name, queue.dead_letters):
        raise Quarantined(f'reply_to is "{name}", from which requests are taken')
    if name.startswith("amq."):
        raise Quarantined(f'reply_to is "{name}", a name of the broker\'s own')
    if not any(matches(pattern, name) for pattern in queue.reply_to):
        raise Quarantined(f'reply_to is "{name}", which is not in the list of queues for replies')


def check_death(properties: Properties) -> None:
    """Raise for a dead-lettered message: RequestRefused if it expired or found no room, else Quarantined."""
    if not properties.death:
        return
    if properties.death == "expired":
        message = "The request's expiration was over before it was taken from its queue."
        raise RequestRefused(failure(FailureCode.EXPIRED, message))
    if properties.death == "maxlen":
        raise RequestRefused(failure(FailureCode.SITE_UNAVAILABLE, "The queue for requests was full."))
    if properties.death == "delivery_limit":
        raise Quarantined("it was delivered too often, each time to a gateway that did not survive it")
    raise Quarantined(f'it was dead-lettered: "{printable(properties.death)}"')


def check_user(properties: Properties, queue: QueueSettings) -> None:
    """Raise RequestRefused if the queue is for certain users, and the broker vouches for none of them."""
    if not queue.users:
        return
    if not properties.user_id:
        message = "This queue is for certain users, and the message has no user_id."
        advice = "Set user_id to the user of the connection to the broker."
        raise RequestRefused(failure(FailureCode.FORBIDDEN, message, advice))
    if properties.user_id not in {user.encode() for user in queue.users}:
        raise RequestRefused(failure(FailureCode.FORBIDDEN, "This user may not send requests to this queue."))


def check_format(properties: Properties, queue: QueueSettings) -> None:
    """Raise RequestRefused if the body is declared to be anything but JSON in UTF-8, uncompressed."""
    accepted = (JSON_TYPE,) if queue.dialect == RODAN else (JSON_TYPE, ENVELOPE_TYPE)
    wrong = []
    if media_type(properties.content_type) not in ("", *accepted):
        wrong.append(f"content_type: it must be {' or '.join(accepted)}, or missing")
    charset = _CHARSET.search(properties.content_type or b"")
    if charset and charset[1].lower() not in (b"utf-8", b"utf8", b"us-ascii", b"ascii"):
        wrong.append("content_type: the charset must be utf-8")
    if (properties.content_encoding or b"").strip().lower() not in _PLAIN_ENCODINGS:
        wrong.append("content_encoding: nothing is decompressed; send JSON in UTF-8, and no content_encoding")
    if wrong:
        message = "The properties of the message say that its body is not plain JSON."
        raise RequestRefused(failure(FailureCode.INVALID_REQUEST, message, mistakes=tuple(wrong)))


def expires_at(properties: Properties, now: float) -> float | None:
    """Return when the expiration of the message is over, in seconds since 1970, or None.

    It counts from the sender's timestamp, if that is not in the future; else from `now`.
    """
    written = properties.expiration or b""
    if not _EXPIRATION.fullmatch(written):
        return None
    sent = properties.timestamp
    return (sent if sent is not None and 0 < sent <= now else now) + int(written) / 1000
