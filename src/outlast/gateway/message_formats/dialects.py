"""The formats of requests and answers, and which of them a message has."""

from __future__ import annotations

from outlast.gateway.requests import Delivery
from outlast.gateway.settings import QueueSettings

OUTLAST = "outlast"
RODAN = "rodan"
#: Our own format inside of a CloudEvents envelope. A queue of our own format takes both.
CLOUDEVENTS = "cloudevents"

#: The type of a body that is a CloudEvents envelope.
ENVELOPE_TYPE = "application/cloudevents+json"
JSON_TYPE = "application/json"


def dialect_of(delivery: Delivery, queue: QueueSettings) -> str:
    """Return the format in which a message is read and answered: OUTLAST, CLOUDEVENTS or RODAN."""
    if queue.dialect == OUTLAST and media_type(delivery.properties.content_type) == ENVELOPE_TYPE:
        return CLOUDEVENTS
    return queue.dialect


def content_type_of(dialect: str) -> str:
    """Return the content type of answers in this format."""
    return ENVELOPE_TYPE if dialect == CLOUDEVENTS else JSON_TYPE


def media_type(content_type: bytes | None) -> str:
    """Return the type without its parameters, in lower case; empty if there is none."""
    return (content_type or b"").partition(b";")[0].strip().lower().decode("ascii", "replace")
