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
#: The most answers that are sent in one step.
_MOST = 500

#: An event of the audit log, and its facts.
_Decision = tuple[str, dict[str, object]]


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
        if self._link.room > 0:
            for number in self._record.due_answer_numbers(now, _MOST + len(self._under_way)):
                if number in self._under_way:
                    continue
                # Each may have megabytes: the room is what is left after those before.
                if self._link.room <= 0:
                    break
                answer = self._record.answer(number)
                if answer is not None:
                    sent += self._publish(answer, now)
        return sent + len(outcomes)

    def settle(self, outcomes: Sequence[PublishOutcome], now: float) -> None:
        """Record outcomes, all in one transaction: what is confirmed and not recorded would be sent again."""
        if not outcomes:
            return
        confirmed = any(outcome.result is PublishResult.CONFIRMED for outcome in outcomes)
        if confirmed:
            reach("gateway.confirmed")
        decisions: list[_Decision] = []
        with self._record.transaction():
            for outcome in outcomes:
                answer = self._record.answer(outcome.number)
                if answer is not None and answer.state == "waiting":
                    decisions.append(self._settle(answer, outcome, now))
        if confirmed:
            reach("gateway.answered")
        self._under_way.difference_update(outcome.number for outcome in outcomes)
        for event, facts in decisions:
            self._audit.write(event, **facts)

    def _publish(self, answer: RecordedAnswer, now: float) -> int:
        body = answer.body
        if body is None:
            try:
                body = read_below(self._directory.answers, answer.file or "", LARGEST)
            except OSError as error:
                event, facts = self._withdraw(answer, "its file cannot be read: %s" % describe_error(error))
                self._audit.write(event, **facts)
                return 0
        self._under_way.add(answer.number)
        self._link.publish(answer.publication(body))
        reach("gateway.published")
        return 1

    def _withdraw(self, answer: RecordedAnswer, reason: str) -> _Decision:
        """Give up an answer whose file is gone: it is made again from the result, which is kept."""
        self._record.retire(answer.number, "withdrawn", reason)
        return "withdrawn", {**_facts(answer), "reason": reason}

    def _settle(self, answer: RecordedAnswer, outcome: PublishOutcome, now: float) -> _Decision:
        if outcome.result is PublishResult.CONFIRMED:
            self._record.confirm(answer.number, now)
            self._close(answer, RequestState.ANSWERED, now)
            return "answered", {**_facts(answer), "kind": answer.kind}
        if outcome.result is PublishResult.TOO_LARGE and answer.kind == "result":
            # It is prepared again, for a broker that takes less than was assumed.
            self._limit.lower(answer.size)
            return self._withdraw(answer, outcome.reason)
        if now - answer.made >= self._keep:
            reason = "%s: %s" % (outcome.result.value, outcome.reason)
            self._record.retire(answer.number, "dead", reason)
            self._close(answer, RequestState.UNDELIVERED, now, reason)
            return "undelivered", {**_facts(answer), "reason": reason}
        self._record.put_off(answer.number, now, outcome.result, outcome.reason)
        return "put-off", {**_facts(answer), "result": outcome.result.value, "reason": outcome.reason}

    def _close(self, answer: RecordedAnswer, state: RequestState, now: float, note: str = "") -> None:
        request = self._record.request(answer.request) if answer.request is not None else None
        if request is not None and request.state in (RequestState.REFUSED, RequestState.ENDED):
            self._record.close_request(request.number, state, now, note)


def _facts(answer: RecordedAnswer) -> dict[str, object]:
    return {"answer": answer.number, "request": answer.request}
