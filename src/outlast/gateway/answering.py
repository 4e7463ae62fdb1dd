"""Answering: what has ended, or was refused, gets an answer in the outbox.

Failures are encoded at once. Results may be gigabytes: a worker collects, encodes and uploads them, into a
file with a name of its own; the record then gets the answer, or the failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.gateway.answers.deliver import Deliver, DeliveredResult, NotNow
from outlast.gateway.gateway_crashpoints import reach
from outlast.gateway.message_formats.dialects import content_type_of
from outlast.gateway.message_formats.encoding import encode_failure
from outlast.gateway.monitoring.audit import AuditBuffer
from outlast.gateway.record.record import Record
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import FailureCode, RequestFailure, RequestState
from outlast.gateway.worker_threads import Worker

_log = logging.getLogger(__name__)

#: Milliseconds after which a reply that nobody takes is dropped by the broker: replies that are not for them
#: are put back by Rodan's waiters for ever.
EXPIRATION = {"rodan": 600_000}
#: The most answers that are prepared in one step.
_MOST = 100
#: Seconds until the delivery of a result that failed for a while is tried again: doubled each time.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0


@dataclass
class _Postponed:
    tries: int = 0
    due: float = 0.0


class Answering:
    """Puts answers into the outbox. `deliver` prepares the result of a run; it is called in a worker."""

    def __init__(
        self,
        record: Record,
        deliver: Deliver,
        audit: AuditBuffer,
        *,
        keep: float,
        workers: int = 2,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_ready` is called in a worker when `step` has something to do."""
        self._record = record
        self._deliver = deliver
        self._audit = audit
        self._keep = keep
        self._worker: Worker[int, DeliveredResult | RequestFailure] = Worker("results", workers, on_ready)
        self._retries: dict[int, _Postponed] = {}

    @property
    def busy(self) -> bool:
        """True while results are being prepared."""
        return self._worker.busy

    def step(self, now: float) -> int:
        """Prepare answers, and put those that are ready into the outbox; return how many."""
        done = self._collect(now)
        # Those that wait for a worker, or for another try, must not keep the others from their turn.
        most = _MOST + len(self._retries) + self._worker.waiting
        ready: list[RecordedRequest] = []
        for request in self._record.without_answer(most):
            if not request.reply_to or request.failure is not None:
                ready.append(request)
            elif self._is_due(request.number):
                self._worker.start(request.number, lambda request=request: self._deliver(request))  # type: ignore[misc]
        if ready:
            self._answer_at_once(ready, now)
        return done + len(ready)

    def _answer_at_once(self, requests: Sequence[RecordedRequest], now: float) -> None:
        """Answer requests that have failed, and close those that want no answer, in one transaction."""
        with self._record.transaction():
            for request in requests:
                if not request.reply_to:
                    note = "no answer was requested (no reply_to)"
                    self._record.close_request(request.number, RequestState.ANSWERED, now, note)
                elif request.failure is not None:
                    self._answer_failure(request, request.failure, now)
        reach("gateway.stored")

    def _is_due(self, number: int) -> bool:
        return time.monotonic() >= self._retries.get(number, _Postponed()).due and not self._worker.has(
            number
        )

    def _answer_failure(self, request: RecordedRequest, failure: RequestFailure, now: float) -> None:
        body = encode_failure(request.dialect, request.id, failure, _facts(request))
        self._store(request, "failure", now, body=body)

    def _collect(self, now: float) -> int:
        done = 0
        for number, found in self._worker.finished():
            request = self._record.request(number)
            if request is None or request.state is not RequestState.ENDED:
                continue
            result = self._judge(request, found, now)
            if isinstance(result, RequestFailure):
                self._record.fail_ended(number, result)
            elif result is not None:
                reach("gateway.encoded")
                self._store(request, "result", now, file=result.file, size=result.size)
                reach("gateway.stored")
            else:
                continue
            self._retries.pop(number, None)
            done += 1
        return done

    def _judge(
        self, request: RecordedRequest, found: DeliveredResult | RequestFailure | BaseException, now: float
    ) -> DeliveredResult | RequestFailure | None:
        """Return what the worker has made of a result; None if it tries again later."""
        if not isinstance(found, BaseException):
            return found
        if isinstance(found, NotNow):
            if self._put_off(request, str(found), now):
                return None
            text = "the result could not be delivered: %s" % found
            return RequestFailure(
                FailureCode.RESULT_UNDELIVERABLE, text, "The site keeps it as %s" % request.run
            )
        _log.error("the result of request %d could not be prepared", request.number, exc_info=found)
        text = "the result could not be sent: %s in the gateway" % type(found).__name__
        return RequestFailure(FailureCode.INTERNAL, text, "The site keeps it as %s" % request.run)

    def _put_off(self, request: RecordedRequest, reason: str, now: float) -> bool:
        """Try again later, unless the result was kept for long enough; return True if so."""
        if request.ended is not None and now - request.ended >= self._keep:
            return False
        retry = self._retries.setdefault(request.number, _Postponed())
        retry.due = time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(retry.tries, 20))
        retry.tries += 1
        self._record.set_note(request.number, "its result waits: %s" % reason)
        return True

    def _store(
        self,
        request: RecordedRequest,
        kind: str,
        now: float,
        *,
        body: bytes | None = None,
        file: str | None = None,
        size: int = 0,
    ) -> None:
        self._record.add_answer(
            routing_key=request.reply_to,
            correlation=request.correlation,
            kind=kind,
            now=now,
            body=body,
            file=file,
            size=size,
            request=request.number,
            expiration=EXPIRATION.get(request.dialect),
            content_type=content_type_of(request.dialect),
        )


def _facts(request: RecordedRequest) -> Mapping[str, Any]:
    return {"template": request.template, "run": request.run}
