"""What is read from the record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    InputReference,
    OutgoingMessage,
    Properties,
    RequestFailure,
    RequestState,
    TrainingRequest,
)

REQUEST_COLUMNS = (
    "number, id, digest, queue, dialect, template, user, reply_to, correlation, at, deadline, state, body, "
    "run, submitted, started, ended, answered, cancel, failure, note"
)
MESSAGE_COLUMNS = "number, at, queue, digest, size, body, properties, redelivered, state, reason, request"
ANSWER_COLUMNS = (
    "number, request, message, exchange, routing_key, correlation, kind, content_type, expiration, body, "
    "file, size, state, made, due, tries, confirmed, reason"
)


@dataclass(frozen=True)
class RecordedMessage:
    """A message as it was taken from the broker."""

    number: int
    at: float
    digest: str
    #: The bytes that it had; the body of a larger one than can be a request is only its beginning.
    size: int
    delivery: Delivery
    state: str
    reason: str
    request: int | None

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> RecordedMessage:
        """Read a row with MESSAGE_COLUMNS."""
        number, at, queue, digest, size, body, properties, redelivered, state, reason, request = row
        delivery = Delivery(queue, body, load_properties(properties), bool(redelivered))
        return cls(number, at, digest, size, delivery, state, reason, request)


@dataclass(frozen=True)
class RecordedRequest:
    """A request and what became of it."""

    number: int
    id: bytes
    digest: str
    queue: str
    dialect: str
    template: str
    #: As the broker has checked it; empty: unknown.
    user: str
    reply_to: str
    correlation: bytes | None
    at: float
    deadline: float | None
    state: RequestState
    body: TrainingRequest
    #: The name of its run; empty before it was accepted.
    run: str
    submitted: float | None
    started: float | None
    ended: float | None
    answered: float | None
    #: Why it is to be cancelled: a failure code; empty: it is not.
    cancel: str
    failure: RequestFailure | None
    #: For people: why it waits, or what was noticed.
    note: str

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> RecordedRequest:
        """Read a row with REQUEST_COLUMNS."""
        values = list(row)
        values[11] = RequestState(values[11])
        values[12] = load_body(values[12])
        values[19] = load_failure(values[19])
        return cls(*values)

    @property
    def shown_id(self) -> str:
        """The id as text."""
        return show_id(self.id)


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer in the outbox."""

    number: int
    request: int | None
    message: int | None
    exchange: str
    routing_key: str
    correlation: bytes | None
    kind: str
    content_type: str
    expiration: int | None
    body: bytes | None
    #: The name of a file in `answers/`, if the body is not in the record.
    file: str | None
    size: int
    #: waiting, confirmed, dead, withdrawn
    state: str
    made: float
    due: float
    tries: int
    confirmed: float | None
    reason: str

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> RecordedAnswer:
        """Read a row with ANSWER_COLUMNS."""
        return cls(*row)

    def publication(self, body: bytes) -> OutgoingMessage:
        """Return the message to publish."""
        return OutgoingMessage(
            number=self.number,
            exchange=self.exchange,
            routing_key=self.routing_key,
            body=body,
            correlation_id=self.correlation,
            message_id="outlast-answer-%d" % self.number,
            content_type=self.content_type,
            type="outlast.%s" % self.kind,
            expiration=self.expiration,
        )


def show_id(value: bytes) -> str:
    """Return an id as text; what is no UTF-8 or not printable is escaped."""
    text = value.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def dump_properties(properties: Properties) -> str:
    """Return the JSON text; bytes become text, one character for each byte."""
    found = {
        key: value.decode("latin-1") if isinstance(value, bytes) else value
        for key, value in vars(properties).items()
        if value is not None and value != "" and value is not False
    }
    return json.dumps(found)


_TEXT_PROPERTIES = frozenset({"death"})
_PLAIN_PROPERTIES = frozenset({"priority", "timestamp", "damaged"})


def load_properties(text: str) -> Properties:
    """Return what `dump_properties` wrote."""
    raw: Mapping[str, Any] = json.loads(text)
    known = {field.name for field in fields(Properties)}
    return Properties(
        **{
            key: value if key in _TEXT_PROPERTIES | _PLAIN_PROPERTIES else value.encode("latin-1")
            for key, value in raw.items()
            if key in known
        }
    )


def dump_body(request: TrainingRequest) -> str:
    """Return the JSON text of a request."""
    return json.dumps(asdict(request))


def load_body(text: str) -> TrainingRequest:
    """Return what `dump_body` wrote."""
    raw = json.loads(text)
    inputs = {name: InputReference(**one) for name, one in raw.pop("inputs", {}).items()}
    return TrainingRequest(**{**raw, "inputs": inputs})


def dump_failure(failure: RequestFailure | None) -> str | None:
    """Return the JSON text of a failure; None for None."""
    if failure is None:
        return None
    return json.dumps({**asdict(failure), "code": failure.code.value})


def load_failure(text: str | None) -> RequestFailure | None:
    """Return what `dump_failure` wrote."""
    if text is None:
        return None
    raw = json.loads(text)
    return RequestFailure(
        **{**raw, "code": FailureCode(raw["code"]), "mistakes": tuple(raw.get("mistakes", ()))}
    )
