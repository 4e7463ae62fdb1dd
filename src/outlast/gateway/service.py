"""The service: takes messages, follows runs, sends answers, one `step` after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outlast.errors import JournalDamaged, JournalHeld, NotWritable, OutlastError
from outlast.gateway.answering import Answering
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.housekeeping import Housekeeping
from outlast.gateway.intake import Intake
from outlast.gateway.monitoring.audit import AuditBuffer
from outlast.gateway.progress import Progress
from outlast.gateway.record.record import Record
from outlast.gateway.record.record_file import RECORD_ERRORS
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import Delivery, PublishOutcome, RequestState
from outlast.gateway.sending import Sending
from outlast.gateway.template_runs import RunEvent, TemplateRuns
from outlast.gateway.web_application.token_keeper import TokenKeeper

_log = logging.getLogger(__name__)

#: The most messages that are recorded in one transaction.
BATCH = 100
#: Seconds between two looks at the steps of running requests, and the most of them in one look.
STEP_LOOK = 5.0
_MOST_STEPS = 200


@dataclass
class Stepped:
    """What one step did."""

    messages: int = 0
    interpreted: int = 0
    submitted: int = 0
    events: int = 0
    answers: int = 0
    sent: int = 0

    @property
    def anything(self) -> bool:
        """True if there may be more to do at once."""
        return any(vars(self).values())


class Service:
    """Everything of the gateway but the threads that supervise the experiments."""

    def __init__(
        self,
        record: Record,
        link: BrokerLink,
        intake: Intake,
        runs: Mapping[str, TemplateRuns],
        answering: Answering,
        sending: Sending,
        progress: Progress,
        audit: AuditBuffer,
        token: TokenKeeper,
        housekeeping: Housekeeping,
    ) -> None:
        self._record = record
        self._link = link
        self._intake = intake
        self._runs = runs
        self._answering = answering
        self._sending = sending
        self._progress = progress
        self._audit = audit
        self._token = token
        self._housekeeping = housekeeping
        self._looked = float("-inf")
        #: Taken from the broker and not recorded yet; outcomes that were not recorded yet.
        self._taken: list[Delivery] = []
        self._outcomes: list[PublishOutcome] = []
        #: By template: why its experiment cannot be read or written now.
        self.trouble: dict[str, str] = {}

    @property
    def idle(self) -> bool:
        """True if nothing is under way that will end by itself."""
        return not (self._answering.busy or self._sending.busy or self._token.busy)

    @property
    def has_unconfirmed(self) -> bool:
        """True while answers were handed to the broker and have no outcome."""
        return self._sending.busy

    def settle(self, timeout: float) -> None:
        """Record outcomes, and wait for more; nothing is published."""
        self._link.wait(timeout, deliveries=False)
        self._outcomes += self._link.outcomes()
        self._sending.settle(self._outcomes, time.time())
        self._outcomes = []

    def step(self, timeout: float, *, take: bool = True) -> Stepped:
        """Do everything that can be done now; wait for up to `timeout` seconds if that is nothing.

        With `take` False, no messages are taken from the broker.
        """
        try:
            done = self._step(take)
        finally:
            self._audit.flush()
        if not done.anything and timeout > 0:
            self._link.wait(timeout, deliveries=take)
        return done

    def _step(self, take: bool) -> Stepped:
        done = Stepped()
        # Both are kept here until the record has them: it may not be writable now.
        if take and not self._taken:
            self._taken = self._link.take(BATCH, 0.0)
        if self._taken:
            self._intake.record_deliveries(self._taken, self._link.ack, time.time())
            done.messages, self._taken = len(self._taken), []
        interpreted = self._intake.interpret(time.time(), BATCH)
        done.interpreted = interpreted.messages
        for request in interpreted.accepted:
            self._progress.publish(request, "queued", {})
        self._cancel(time.time())
        self._token.step(time.time())
        for name, runs in self._runs.items():
            self._advance(name, runs, done)
        done.answers = self._answering.step(time.time())
        self._outcomes += self._link.outcomes()
        done.sent = self._sending.step(self._outcomes, time.time())
        self._outcomes = []
        self._publish_steps(time.time())
        self._housekeeping.step(time.time())
        return done

    def _advance(self, name: str, runs: TemplateRuns, done: Stepped) -> None:
        """Submit and follow the runs of a template; what is wrong with its experiment concerns it alone."""
        try:
            done.submitted += len(runs.submit(time.time()))
            events = runs.follow(time.time())
        except RECORD_ERRORS:
            raise
        except (JournalDamaged, JournalHeld, NotWritable) as error:
            self._note_trouble(name, runs, error)
            return
        self.trouble.pop(name, None)
        done.events += len(events)
        self._publish(events)

    def _note_trouble(self, name: str, runs: TemplateRuns, error: OutlastError) -> None:
        if name not in self.trouble:
            _log.error("%s: %s", name, error)
        self.trouble[name] = str(error)
        runs.close()  # the journal is opened anew: its file may be another one afterwards

    def _cancel(self, now: float) -> None:
        by_template: dict[str, list[RecordedRequest]] = {}
        for request in self._record.to_cancel(now):
            by_template.setdefault(request.template, []).append(request)
        for name, requests in by_template.items():
            if name in self._runs:
                try:
                    self._runs[name].cancel(requests, now)
                except RECORD_ERRORS:
                    raise
                except NotWritable as error:
                    self._note_trouble(name, self._runs[name], error)

    def _publish(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._progress.publish(event.request, event.event, event.facts)

    def _publish_steps(self, now: float) -> None:
        if time.monotonic() - self._looked < STEP_LOOK:
            return
        self._looked = time.monotonic()
        for request in self._record.requests([RequestState.RUNNING], most=_MOST_STEPS):
            runs = self._runs.get(request.template)
            if runs is None or request.template in self.trouble:
                continue
            try:
                attempt = runs.current_attempt(request)
            except (JournalDamaged, JournalHeld, NotWritable) as error:
                self._note_trouble(request.template, runs, error)
                continue
            if attempt is not None:
                self._progress.publish_step(request, runs.experiment, attempt, now)
