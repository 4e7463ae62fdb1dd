"""From a delivery to a request: the one function that reads messages."""

from __future__ import annotations

import dataclasses

from outlast.gateway.message_formats.cloudevents import read_envelope
from outlast.gateway.message_formats.delivery_checks import (
    check_answerable,
    check_death,
    check_format,
    check_user,
    expires_at,
)
from outlast.gateway.message_formats.dialects import CLOUDEVENTS, RODAN, dialect_of
from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.message_formats.mistake_list import MistakeList
from outlast.gateway.message_formats.own import read_own
from outlast.gateway.message_formats.rodan import read_rodan
from outlast.gateway.message_formats.strict_json import parse
from outlast.gateway.requests import Body, Delivery, FailureCode, Properties, RequestRefused, TrainingRequest
from outlast.gateway.settings import QueueSettings


def read_message(delivery: Delivery, queue: QueueSettings, now: float) -> Body:
    """Return the request in a message that was taken at `now` from `queue` or its dead letters.

    Raise RequestRefused if it is answered with a failure, Quarantined if it must not be answered; nothing
    else, whatever the message holds. The deadline is the earlier of the request's and the message's.
    """
    check_answerable(delivery, queue)
    check_death(delivery.properties)
    check_user(delivery.properties, queue)
    check_format(delivery.properties, queue)
    body = _read_body(delivery, queue)
    return _with_deadline(body, delivery.properties, now) if isinstance(body, TrainingRequest) else body


def _read_body(delivery: Delivery, queue: QueueSettings) -> Body:
    mistakes = MistakeList()
    value = parse(delivery.body, mistakes)
    dialect = dialect_of(delivery, queue)
    body: Body | None
    if dialect == RODAN:
        body = read_rodan(value, queue.template, mistakes)
    elif dialect == CLOUDEVENTS:
        body = read_envelope(value, mistakes)
    else:
        body = read_own(value, (), mistakes)
    mistakes.raise_if_any()
    assert body is not None
    return body


def _with_deadline(request: TrainingRequest, properties: Properties, now: float) -> TrainingRequest:
    moments = (request.deadline, expires_at(properties, now))
    deadline = min((moment for moment in moments if moment is not None), default=None)
    if deadline is not None and deadline <= now:
        raise RequestRefused(
            failure(FailureCode.EXPIRED, "The request's deadline was over before it could start.")
        )
    return dataclasses.replace(request, deadline=deadline)
