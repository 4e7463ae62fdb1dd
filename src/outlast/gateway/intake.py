"""Intake: messages are recorded as they are, acknowledged, and only then interpreted.

No message can stop the others: whatever its interpretation raises puts that message aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outlast.errors import JournalDamaged, JournalHeld, NotWritable
from outlast.gateway.gateway_crashpoints import reach
from outlast.gateway.message_formats.delivery_checks import check_answerable
from outlast.gateway.message_formats.dialects import dialect_of
from outlast.gateway.message_formats.message_identity import message_digest, request_id
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.monitoring.audit import AuditBuffer
from outlast.gateway.record.message_record import LARGEST_BODY
from outlast.gateway.record.record import Origin, Record
from outlast.gateway.record.rows import RecordedMessage, RecordedRequest, show_id
from outlast.gateway.request_admission import Admission
from outlast.gateway.requests import (
    CancelRequest,
    Delivery,
    FailureCode,
    Quarantined,
    RequestFailure,
    RequestRefused,
    RequestState,
    StatusRequest,
    TrainingRequest,
)
from outlast.gateway.settings import QueueSettings
from outlast.text import printable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interpreted:
    """What a batch of messages was: how many, and the requests that were accepted."""

    messages: int
    accepted: Sequence[RecordedRequest] = ()


class Intake:
    """Records and interprets messages. `queues` has the settings of each queue that is consumed, by name."""

    def __init__(
        self, record: Record, queues: Mapping[str, QueueSettings], admission: Admission, audit: AuditBuffer
    ) -> None:
        self._record = record
        self._queues = queues
        self._admission = admission
        self._audit = audit

    def record_deliveries(
        self, deliveries: Sequence[Delivery], acknowledge: Callable[[Sequence[Delivery]], None], now: float
    ) -> None:
        """Record deliveries durably, then acknowledge them."""
        reach("gateway.taken")
        numbers = self._record.add_messages([(one, message_digest(one)) for one in deliveries], now)
        reach("gateway.recorded")
        acknowledge(deliveries)
        self._record.mark_acked(numbers)
        reach("gateway.acked")

    def interpret(self, now: float, most: int = 100) -> Interpreted:
        """Interpret recorded messages, in one transaction."""
        waiting = self._record.new_messages(most)
        accepted: list[RecordedRequest] = []
        if not waiting:
            return Interpreted(0)
        with self._record.transaction():
            self._admission.begin_batch()
            for message in waiting:
                try:
                    with self._record.savepoint():
                        found = self._interpret(message, now)
                    if found is not None:
                        accepted.append(found)
                except (JournalDamaged, JournalHeld, NotWritable, OSError):
                    raise  # the record cannot be written now; the message waits
                except Exception as error:  # a bug, which must concern this message only
                    _log.exception("message %d cannot be interpreted", message.number)
                    self._quarantine(message, "internal error: %s" % type(error).__name__)
        reach("gateway.interpreted")
        return Interpreted(len(waiting), accepted)

    def _interpret(self, message: RecordedMessage, now: float) -> RecordedRequest | None:
        queue = self._queues.get(message.delivery.queue)
        if queue is None:
            self._quarantine(message, "its queue is not in gateway.yaml any more")
            return None
        if self._record.is_same_delivery(message):
            self._record.set_message(message.number, "duplicate", "delivered again by the broker")
            return None
        try:
            body = read_message(self._whole(message), queue, now)
            if isinstance(body, TrainingRequest):
                return self._train(message, queue, body, now)
            self._control(message, queue, body, now)
        except Quarantined as error:
            self._quarantine(message, str(error))
        except RequestRefused as error:
            self._refuse(message, queue, TrainingRequest(""), error.failure, now)
        return None

    def _whole(self, message: RecordedMessage) -> Delivery:
        """Return the delivery. Raise RequestRefused if not all of its body was recorded."""
        if message.size > LARGEST_BODY:
            text = "the message has %d bytes; a request has at most %d" % (message.size, LARGEST_BODY)
            advice = "Name files by URL under `inputs` instead of sending them"
            # What decides whether it can be answered is in the properties, which are whole.
            check_answerable(message.delivery, self._queues[message.delivery.queue])
            raise RequestRefused(RequestFailure(FailureCode.INVALID_REQUEST, text, advice))
        return message.delivery

    def _train(
        self, message: RecordedMessage, queue: QueueSettings, body: TrainingRequest, now: float
    ) -> RecordedRequest | None:
        origin = self._origin(message, queue)
        if self._is_known(message, origin, now):
            return None
        try:
            template = self._admission.check(origin, body, now)
        except RequestRefused as error:
            self._refuse(message, queue, body, error.failure, now)
            return None
        request = self._record.add_request(origin, body, now, deadline=body.deadline, run_of=template)
        self._record.set_message(message.number, "request", "", request.number)
        self._admission.note_accepted(request)
        self._audit_request("accepted", request, run=request.run)
        return request

    def _is_known(self, message: RecordedMessage, origin: Origin, now: float) -> bool:
        """Deal with a message whose id is known: the same again, or another under the same id."""
        known = self._record.request_by_id(origin.id)
        if known is None:
            return False
        if known.digest == origin.digest:
            self._record.set_message(message.number, "duplicate", "the same request again", known.number)
            self._answer_again(known, now)
            self._audit_request("repeated", known)
            return True
        text = "another request has the id %s; it was sent %s" % (
            known.shown_id,
            "with another body or reply_to, or by another user",
        )
        failure = RequestFailure(FailureCode.DUPLICATE_ID, text, "Send each request under an id of its own")
        self._record.set_message(message.number, "refused", failure.code.value, known.number)
        self._admission.answer_message(message, origin, failure, now)
        self._audit_request("refused", known, code=failure.code.value)
        return True

    def _answer_again(self, known: RecordedRequest, now: float) -> None:
        """Send the stored answer again; a request that is under way is answered when it ends."""
        if known.state is RequestState.ANSWERED:
            for answer in self._record.answers_of(known.number)[-1:]:
                self._record.send_again(answer.number, now)

    def _refuse(
        self,
        message: RecordedMessage,
        queue: QueueSettings,
        body: TrainingRequest,
        failure: RequestFailure,
        now: float,
    ) -> None:
        origin = self._origin(message, queue)
        if self._is_known(message, origin, now):
            return
        request = self._record.add_request(origin, body, now, failure=failure)
        self._record.set_message(message.number, "refused", failure.code.value, request.number)
        self._audit_request("refused", request, code=failure.code.value, text=failure.message)

    def _control(
        self,
        message: RecordedMessage,
        queue: QueueSettings,
        body: CancelRequest | StatusRequest,
        now: float,
    ) -> None:
        origin = self._origin(message, queue)
        known = self._record.request_by_id(body.id)
        kind = "cancel" if isinstance(body, CancelRequest) else "status"
        failure = None
        if known is None:
            failure = RequestFailure(
                FailureCode.INVALID_REQUEST, "no request has the id %s" % show_id(body.id)
            )
        elif known.user != origin.user:
            failure = RequestFailure(
                FailureCode.FORBIDDEN, "the request %s was sent by another user" % show_id(body.id)
            )
        if failure is not None or known is None:
            assert failure is not None
            self._admission.answer_message(message, origin, failure, now)
            self._record.set_message(message.number, "refused", failure.code.value)
            self._audit.write(kind, id=show_id(body.id), user=origin.user, refused=failure.code.value)
            return
        if isinstance(body, CancelRequest):
            self._record.ask_cancel(known.number, FailureCode.CANCELLED.value, "cancelled by its sender")
        self._admission.answer_status(message, origin, known, now)
        self._record.set_message(message.number, "control", kind, known.number)
        self._audit_request(kind, known)

    def _origin(self, message: RecordedMessage, queue: QueueSettings) -> Origin:
        properties = message.delivery.properties
        # A property that is no UTF-8 was refused or put aside when the message was read.
        dialect = dialect_of(message.delivery, queue)
        return Origin(
            id=request_id(message.delivery, dialect),
            digest=message.digest,
            queue=queue.name,
            dialect=dialect,
            user=(properties.user_id or b"").decode("utf-8", "backslashreplace"),
            reply_to=(properties.reply_to or b"").decode("utf-8", "backslashreplace"),
            correlation=properties.correlation_id,
        )

    def _quarantine(self, message: RecordedMessage, reason: str) -> None:
        self._record.set_message(message.number, "quarantined", printable(reason))
        self._audit.write("quarantined", message=message.number, digest=message.digest, reason=reason)

    def _audit_request(self, event: str, request: RecordedRequest, **facts: object) -> None:
        self._audit.write(
            event,
            request=request.number,
            id=request.shown_id,
            user=request.user,
            template=request.template,
            digest=request.digest,
            **facts,
        )
