"""The words of the gateway. All classes are frozen; nothing here reads a clock, a file or the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class FailureCode(str, Enum):
    """Why a request was refused or failed. The values are part of the message format."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNKNOWN_TEMPLATE = "unknown_template"
    FORBIDDEN = "forbidden"
    OVER_QUOTA = "over_quota"
    OVER_CEILING = "over_ceiling"
    DUPLICATE_ID = "duplicate_id"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    INPUT_REFUSED = "input_refused"
    INPUT_UNAVAILABLE = "input_unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_TIME = "out_of_time"
    TRAINING_FAILED = "training_failed"
    RESULT_UNDELIVERABLE = "result_undeliverable"
    SITE_UNAVAILABLE = "site_unavailable"
    INTERNAL = "internal"


#: A request that failed for one of these may succeed if the same is sent again, under another id.
RETRYABLE = frozenset(
    {
        FailureCode.OVER_QUOTA,
        FailureCode.EXPIRED,
        FailureCode.INPUT_UNAVAILABLE,
        FailureCode.RESULT_UNDELIVERABLE,
        FailureCode.SITE_UNAVAILABLE,
        FailureCode.INTERNAL,
    }
)


@dataclass(frozen=True)
class RequestFailure:
    """Why a request has no result: a code, a sentence, and what to do."""

    code: FailureCode
    message: str
    advice: str = ""
    #: Every mistake in the request, as `path: text`.
    mistakes: tuple[str, ...] = ()
    #: How many attempts were made.
    attempts: int = 0

    @property
    def retryable(self) -> bool:
        """True if sending the same again, under another id, may help."""
        return self.code in RETRYABLE


class RequestRefused(Exception):
    """A message is a request that is answered with a failure."""

    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Quarantined(Exception):
    """A message is put aside without an answer: nobody could get one, or an answer would do harm."""


@dataclass(frozen=True)
class Properties:
    """The properties of a message, as the broker delivered them. Text is bytes: it may be no UTF-8.

    Whatever could not be decoded is None, and `damaged` says so.
    """

    message_id: bytes | None = None
    correlation_id: bytes | None = None
    reply_to: bytes | None = None
    content_type: bytes | None = None
    content_encoding: bytes | None = None
    #: Checked by the broker: the user of the connection that published the message.
    user_id: bytes | None = None
    app_id: bytes | None = None
    type: bytes | None = None
    #: Milliseconds in decimal, as written by the sender.
    expiration: bytes | None = None
    priority: int | None = None
    timestamp: int | None = None
    #: Why it was dead-lettered, if it was: `expired`, `rejected`, `maxlen` or `delivery_limit`.
    death: str = ""
    #: The expiration before it was dead-lettered.
    original_expiration: bytes | None = None
    #: The header table, or a time in it, could not be decoded.
    damaged: bool = False


@dataclass(frozen=True)
class Delivery:
    """A message as it was taken from the broker. `tag` is opaque; the link acknowledges by it."""

    queue: str
    body: bytes
    properties: Properties = field(default_factory=Properties)
    redelivered: bool = False
    tag: Any = None
    #: The bytes of the whole body. `body` is only its beginning if the link keeps no more.
    size: int = 0


@dataclass(frozen=True)
class InputReference:
    """A file that a request names. `url` is absolute, or a path on the application's host."""

    url: str
    sha256: str = ""
    size: int | None = None


@dataclass(frozen=True)
class TrainingRequest:
    """A request to train: a template and values, not yet checked against what the template declares."""

    template: str
    #: By parameter; JSON values: str, int, float or bool.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: By the input's name in the template.
    inputs: Mapping[str, InputReference] = field(default_factory=dict)
    #: `cpus`, `gpus` (numbers), `memory`, `disk` (bytes), `time` (seconds): the most that it may use.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Seconds since 1970, or None.
    deadline: float | None = None
    #: Where results are put, by output name: URLs that accept PUT. They may be signed, so they are not shown.
    uploads: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class CancelRequest:
    """A request to cancel the request with this id."""

    id: bytes


@dataclass(frozen=True)
class StatusRequest:
    """A request for the state of the request with this id."""

    id: bytes


Body = TrainingRequest | CancelRequest | StatusRequest


class RequestState(str, Enum):
    """received → refused | accepted → running → ended → answered (or undelivered)."""

    RECEIVED = "received"
    REFUSED = "refused"
    ACCEPTED = "accepted"
    RUNNING = "running"
    ENDED = "ended"
    ANSWERED = "answered"
    UNDELIVERED = "undelivered"

    @property
    def over(self) -> bool:
        """True if nothing follows."""
        return self in (RequestState.ANSWERED, RequestState.UNDELIVERED)


@dataclass(frozen=True)
class ResultFile:
    """A file of a finished run's result. `name` is the output's name in the answer."""

    name: str
    path: Path
    size: int
    sha256: str
    #: Where it was put, if it is sent by reference: a URL without its query, or a path.
    place: str = ""


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to publish. `number` identifies it to the sender; the link does not look at it."""

    number: int
    exchange: str
    routing_key: str
    body: bytes
    correlation_id: bytes | None = None
    message_id: str = ""
    content_type: str = "application/json"
    type: str = ""
    #: Milliseconds after which the broker may drop it; None: never.
    expiration: int | None = None
    persistent: bool = True
    #: Returned if no queue takes it. Progress is not: nobody may be listening.
    mandatory: bool = True
    #: Set by clients: where the answer goes, and the user of the connection, whom the broker checks.
    reply_to: str = ""
    user_id: str = ""


class PublishResult(str, Enum):
    """What became of a publication."""

    CONFIRMED = "confirmed"  # all its queues have it
    RETURNED = "returned"  # there is no such queue
    NACKED = "nacked"  # a queue is full, or the broker failed
    TOO_LARGE = "too-large"  # the broker closed the channel: its message limit
    REFUSED = "refused"  # no permission, or no such exchange
    UNKNOWN = "unknown"  # the connection ended before a confirm: it may or may not have arrived


@dataclass(frozen=True)
class PublishOutcome:
    """The outcome of one publication."""

    number: int
    result: PublishResult
    reason: str = ""


def run_name(template: str, number: int) -> str:
    """Return the name of the run of a request."""
    return f"{template}-{number:06d}"
