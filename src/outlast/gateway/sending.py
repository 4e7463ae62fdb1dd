"""Sending: answers of the outbox go to the broker until it has confirmed them."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.filesystem import describe_error
from outlast.gateway.answer_limit import AnswerLimit
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.gateway_crashpoints import reach
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.monitoring.audit import AuditBuffer
from outlast.gateway.record.record import Record
from outlast.gateway.record.rows import RecordedAnswer
from outlast.gateway.requests import PublishOutcome, PublishResult, RequestState
from outlast.untrusted_files import read_below

#: The most bytes of an answer that is sent: the most that a broker can be set to take.
LARGEST = 512 * 2**20


class Sending:
    """Publishes answers that are due, and records what became of them."""

    def __init__(
        self,
        directory: GatewayDirectory,
        record: Record,
        link: BrokerLink,
        audit: AuditBuffer,
        limit: AnswerLimit,
        *,
        keep: float,
    ) -> None:
        self._directory = directory
        self._record = record
        self._link = link
        self._audit = audit
        self._limit = limit
        self._keep = keep
        #: Published, with no outcome yet.
        self._under_way: set[int] = set()

    @property
    def busy(self) -> bool:
        """True while answers were handed to the broker and have no outcome."""
        return bool(self._under_way)

    def step(self, outcomes: Sequence[PublishOutcome], now: float) -> int:
        """Record outcomes and publish what is due; return how many of both."""
        self.settle(outcomes, now)
        sent = 0
        room = self._link.room
        if room > 0:
            for answer in self._record.due_answers(now, room + len(self._under_way)):
                if answer.number in self._under_way or sent >= room:
                    continue
                sent += self._publish(answer, now)
        return sent + len(outcomes)

    def settle(self, outcomes: Sequence[PublishOutcome], now: float) -> None:
        """Record outcomes."""
        for outcome in outcomes:
            self._under_way.discard(outcome.number)
            answer = self._record.answer(outcome.number)
            if answer is not None and answer.state == "waiting":
                self._settle(answer, outcome, now)

    def _publish(self, answer: RecordedAnswer, now: float) -> int:
        body = answer.body
        if body is None:
            try:
                body = read_below(self._directory.answers, answer.file or "", LARGEST)
            except OSError as error:
                self._withdraw(answer, "its file cannot be read: %s" % describe_error(error))
                return 0
        self._under_way.add(answer.number)
        self._link.publish(answer.publication(body))
        reach("gateway.published")
        return 1

    def _withdraw(self, answer: RecordedAnswer, reason: str) -> None:
        """Give up an answer whose file is gone: it is made again from the result, which is kept."""
        self._record.retire(answer.number, "withdrawn", reason)
        self._audit.write("withdrawn", answer=answer.number, request=answer.request, reason=reason)

    def _settle(self, answer: RecordedAnswer, outcome: PublishOutcome, now: float) -> None:
        if outcome.result is PublishResult.CONFIRMED:
            reach("gateway.confirmed")
            with self._record.transaction():
                self._record.confirm(answer.number, now)
                self._close(answer, RequestState.ANSWERED, now)
            reach("gateway.answered")
            self._audit.write("answered", answer=answer.number, request=answer.request, kind=answer.kind)
            return
        if outcome.result is PublishResult.TOO_LARGE and answer.kind == "result":
            # It is prepared again, for a broker that takes less than was assumed.
            self._limit.lower(answer.size)
            self._withdraw(answer, outcome.reason)
            return
        if now - answer.made >= self._keep:
            reason = "%s: %s" % (outcome.result.value, outcome.reason)
            with self._record.transaction():
                self._record.retire(answer.number, "dead", reason)
                self._close(answer, RequestState.UNDELIVERED, now, reason)
            self._audit.write("undelivered", answer=answer.number, request=answer.request, reason=reason)
            return
        self._record.put_off(answer.number, now, outcome.result, outcome.reason)
        self._audit.write(
            "put-off",
            answer=answer.number,
            request=answer.request,
            result=outcome.result.value,
            reason=outcome.reason,
        )

    def _close(self, answer: RecordedAnswer, state: RequestState, now: float, note: str = "") -> None:
        request = self._record.request(answer.request) if answer.request is not None else None
        if request is not None and request.state in (RequestState.REFUSED, RequestState.ENDED):
            self._record.close_request(request.number, state, now, note)
