"""A client of a gateway: sends a request, and waits for its answer whatever happens to the connection.

The same message is sent again after a lost connection. The gateway takes it for the same request, and sends
the stored answer again if there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from outlast.errors import OutlastError
from outlast.gateway.requester.client_answer import Answer, BadAnswer, read_answer
from outlast.gateway.requester.client_request import ClientRequest
from outlast.gateway.requests import OutgoingMessage, PublishOutcome, PublishResult

#: Seconds within which a request must have been confirmed by the broker.
SEND_TIMEOUT = 60.0
#: Seconds between two connections: doubled each time.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
#: Outcomes after which the same may be taken a moment later.
_PASSING = (PublishResult.NACKED, PublishResult.UNKNOWN)


class CannotSend(OutlastError):
    """The request could not be sent, or its answer did not come in time."""


class LinkLost(Exception):
    """The connection cannot be made, or has ended; the message says why."""


class LinkRefused(Exception):
    """The broker does not let this user do what is needed; another try does not help."""


@dataclass(frozen=True)
class Received:
    """A message of the reply queue or of the progress exchange."""

    correlation_id: bytes | None
    body: bytes
    is_progress: bool = False


class ClientLink(Protocol):
    """A connection to the broker for one request. Every method may raise LinkLost."""

    def open(self, request: ClientRequest, timeout: float) -> None:
        """Connect, and consume the queues of the request. Raise LinkRefused if the broker forbids that."""

    def publish(self, publication: OutgoingMessage, timeout: float) -> PublishOutcome:
        """Publish a message and wait until it is confirmed."""

    def receive(self, timeout: float) -> Received | None:
        """Return the next message; None if there is none in time. It is not acknowledged yet."""

    def acknowledge(self) -> None:
        """Acknowledge the message of the reply queue that was received last."""

    def close(self) -> None:
        """End the connection; does nothing if there is none."""


#: Called with each progress message, and with a sentence when the connection was lost.
OnProgress = Callable[[Answer], None]
OnTrouble = Callable[[str], None]


class Requester:
    """Sends one request and waits for its answer."""

    def __init__(
        self,
        link: ClientLink,
        request: ClientRequest,
        *,
        user: str,
        on_progress: OnProgress = lambda _: None,
        on_trouble: OnTrouble = lambda _: None,
    ) -> None:
        self._link = link
        self._request = request
        self._user = user
        self._on_progress = on_progress
        self._on_trouble = on_trouble
        self._pause = FIRST_PAUSE

    def send(self, timeout: float = SEND_TIMEOUT) -> None:
        """Send the request; it is in the queue when this returns. Raise CannotSend."""
        self._send(time.monotonic() + timeout)

    def wait(self, timeout: float) -> Answer | None:
        """Return the answer; None if there is none in time. Raise CannotSend if there will be none."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            try:
                received = self._link.receive(left)
                if received is None:
                    return None
                answer = self._answer_in(received)
                if answer is not None:
                    self._link.acknowledge()
                    return answer
            except LinkLost as error:
                self._on_trouble("%s; connecting again" % error)
                # An answer that had arrived is lost with the connection's queue: ask for it again.
                self._send(end)
            except LinkRefused as error:
                raise CannotSend(
                    "the answer cannot be waited for: %s; the request goes on" % error
                ) from error
        return None

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _send(self, end: float) -> None:
        while True:
            try:
                self._link.close()
                self._link.open(self._request, max(0.1, end - time.monotonic()))
                outcome = self._link.publish(self._publication(), max(0.1, end - time.monotonic()))
                if outcome.result is PublishResult.CONFIRMED:
                    self._pause = FIRST_PAUSE
                    return
                reason = self._describe(outcome)
                if outcome.result not in _PASSING:
                    raise CannotSend(reason)
            except LinkLost as error:
                reason = str(error)
            except LinkRefused as error:
                raise CannotSend("%s; the request was not sent" % error) from error
            if time.monotonic() + self._pause >= end:
                raise CannotSend("the request may not have been sent: %s" % reason)
            self._on_trouble("%s; trying again" % reason)
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _publication(self) -> OutgoingMessage:
        request = self._request
        return OutgoingMessage(
            number=1,
            exchange="",
            routing_key=request.queue,
            body=request.body,
            correlation_id=request.id,
            message_id=request.id.decode("utf-8"),
            type="outlast.request",
            reply_to=request.reply_to,
            user_id=self._user,
        )

    def _describe(self, outcome: PublishOutcome) -> str:
        queue = self._request.queue
        texts = {
            PublishResult.RETURNED: "the broker has no queue %s; `outlast gateway up` creates it" % queue,
            PublishResult.NACKED: "queue %s takes no messages now" % queue,
            PublishResult.TOO_LARGE: "the request is larger than the broker allows",
            PublishResult.REFUSED: "the broker refused the request",
            PublishResult.UNKNOWN: "the connection ended before the broker had confirmed the request",
        }
        text = texts[outcome.result]
        return "%s (%s)" % (text, outcome.reason) if outcome.reason else text

    def _answer_in(self, received: Received) -> Answer | None:
        """Return the answer to this request in a message; None if it is progress, or for somebody else."""
        if received.is_progress:
            with suppress(BadAnswer):  # progress is only shown
                self._on_progress(read_answer(received.body))
            return None
        if received.correlation_id != self._request.id:
            return None
        try:
            return read_answer(received.body)
        except BadAnswer as error:
            raise CannotSend("the answer cannot be used: %s" % error) from error
