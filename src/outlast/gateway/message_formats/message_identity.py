"""Which request a message is, and whether two messages are the same one."""

from __future__ import annotations

import hashlib

from outlast.gateway.message_formats.dialects import RODAN
from outlast.gateway.requests import Delivery


def request_id(delivery: Delivery, dialect: str = "") -> bytes:
    """Return the id of the request: `message_id`, else `correlation_id`, else a digest of the message.

    Rodan identifies its requests by `correlation_id`, so that one comes first there.
    """
    properties = delivery.properties
    ids = (properties.message_id, properties.correlation_id)
    first, second = reversed(ids) if dialect == RODAN else ids
    return first or second or f"digest-{message_digest(delivery)}".encode()


def message_digest(delivery: Delivery) -> str:
    """Return the SHA-256 of all that gives the message its meaning, in hexadecimal.

    These are the body, how to read it, who sent it, and where its answer goes. Messages that are sent or
    delivered again have the same one: times, priority, expiration and the queue do not count.
    """
    properties = delivery.properties
    digest = hashlib.sha256()
    for value in (
        properties.content_type,
        properties.content_encoding,
        properties.reply_to,
        properties.correlation_id,
        properties.user_id,
    ):
        # With its length, so that no two lists of values are hashed alike.
        digest.update(b"-" if value is None else b"%d:" % len(value))
        digest.update(value or b"")
    # Of a body that is too large to be a request, only the beginning may be here.
    digest.update(b"%d:" % max(delivery.size, len(delivery.body)))
    digest.update(delivery.body)
    return digest.hexdigest()
