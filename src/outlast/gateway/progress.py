"""Progress messages on a topic exchange: what the run of a request is doing. They may be lost.

The routing key is `request.ID.EVENT`; an id that is no word of a topic is replaced by a digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.domain.model import Attempt
from outlast.exchange import attempt_log
from outlast.exchange.experiment import Experiment
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.message_formats.encoding import encode_progress, routing_word
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import OutgoingMessage

#: Seconds between two messages about the steps of one run.
STEP_INTERVAL = 10.0
#: Publications for which there is always room beside those of progress.
_ROOM_FOR_ANSWERS = 100


class Progress:
    """Publishes what happens to requests. Without an exchange, nothing is published."""

    def __init__(self, exchange: str, link: BrokerLink) -> None:
        self._exchange = exchange
        self._link = link
        #: By request: when its steps were last published, and the last step.
        self._steps: dict[int, tuple[float, object]] = {}

    def publish(self, request: RecordedRequest, event: str, facts: Mapping[str, Any]) -> None:
        """Publish an event of a request, if anybody may want it."""
        if not self._exchange or self._link.room < _ROOM_FOR_ANSWERS:
            return
        body = encode_progress(request.dialect, request.id, event, facts)
        key = "request.%s.%s" % (routing_word(request.id), event)
        self._link.publish(
            OutgoingMessage(
                number=0,
                exchange=self._exchange,
                routing_key=key,
                body=body,
                correlation_id=request.correlation,
                type="outlast.progress",
                persistent=False,
                mandatory=False,
            )
        )

    def publish_step(
        self, request: RecordedRequest, experiment: Experiment, attempt: Attempt, now: float
    ) -> None:
        """Publish how far the training of a running request is, at most every STEP_INTERVAL seconds."""
        last, step = self._steps.get(request.number, (0.0, None))
        if not self._exchange or now - last < STEP_INTERVAL:
            return
        progress = attempt_log.progress_of(experiment.exchange_of(attempt))
        if progress is None or progress.get("step") == step:
            return
        self._steps[request.number] = (now, progress.get("step"))
        facts = {key: progress[key] for key in ("step", "total", "metrics") if key in progress}
        self.publish(request, "step", facts)

    def forget(self, request: RecordedRequest) -> None:
        """Forget a request that has ended."""
        self._steps.pop(request.number, None)
