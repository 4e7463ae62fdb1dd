"""The runs of one template: requests become runs of its experiment, and what happens to these is followed.

The controller is reached through its inbox, and read through the journal. Both can be repeated: a run is
known by its name, and the journal is followed from the last entry that the record contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from outlast.controller.inbox import Cancel, Inbox, Submit
from outlast.controller.submission import prepare
from outlast.domain.model import Attempt, EntryKind, JournalEntry, RunPlan, Spec
from outlast.errors import NotWritable
from outlast.exchange.experiment import Experiment
from outlast.filesystem import describe_error
from outlast.gateway.gateway_crashpoints import reach
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.monitoring.audit import AuditBuffer
from outlast.gateway.planning.failures import failure_of
from outlast.gateway.record.record import ImpossibleRequestStep, Record
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import (
    FailureCode,
    RequestFailure,
    RequestRefused,
    RequestState,
    TrainingRequest,
)
from outlast.gateway.settings import Template
from outlast.gateway.web_application.token_keeper import TokenKeeper
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank
from outlast.node.staging.errors import ErrorKind
from outlast.spec import Parsed

#: Entries of a journal that matter to a request.
_KINDS = (
    *(EntryKind.INTENDED, EntryKind.STARTED, EntryKind.ENDED, EntryKind.HELD_BACK),
    *(EntryKind.FINISHED, EntryKind.FAILED, EntryKind.CANCELLED),
)
_ENDS = (EntryKind.FINISHED, EntryKind.FAILED, EntryKind.CANCELLED)
#: The most entries that are followed in one transaction.
_MOST_ENTRIES = 500
#: Seconds after which the cancellation of a run that has not ended is requested again.
REPEAT_CANCEL = 60.0

#: Makes the run of a request: template, request, user, number, time.
MakeRun = Callable[[Template, TrainingRequest, str, int, float], tuple[Spec, RunPlan]]


@dataclass(frozen=True)
class RunEvent:
    """Something that happened to a request, for its progress messages."""

    request: RecordedRequest
    event: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class TemplateRuns:
    """Connects the requests for one template with the experiment in which they are runs."""

    def __init__(
        self,
        directory: GatewayDirectory,
        template: Template,
        parsed: Parsed,
        record: Record,
        make_run: MakeRun,
        audit: AuditBuffer,
        token: TokenKeeper,
    ) -> None:
        self.template = template
        self.experiment = Experiment(directory.experiment(template.name))
        self._parsed = parsed
        self._record = record
        self._make_run = make_run
        self._audit = audit
        self._token = token
        self._inbox = Inbox(self.experiment.inbox)
        self._journal: Journal | None = None
        self._prepared: Spec | None = None
        #: By request: when its cancellation was requested last (monotonic clock).
        self._cancelled: dict[int, float] = {}

    def prepare(self) -> None:
        """Create the experiment and pack the template's code into it. Raise BadInput or NotWritable."""
        try:
            self.experiment.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = "%s: it cannot be created: %s" % (self.experiment.root, describe_error(error))
            raise NotWritable(text) from error
        self._prepared = prepare(self.experiment, self._parsed, source=self.template.directory)

    # Requests to runs.

    def submit(self, now: float) -> list[RecordedRequest]:
        """Hand accepted requests to the controller, as many as may run; return them."""
        if not self._token.ready and any(rule.token for rule in self.template.inputs.values()):
            self._wait_for_token(now)
            return []
        chosen = self._record.choose_next(self.template.name, self.template.quota.running)
        if chosen and self._prepared is None:
            self.prepare()
        submitted = []
        for request in chosen:
            try:
                spec, plan = self._make_run(self.template, request.body, request.user, request.number, now)
            except RequestRefused as error:  # the template was changed since the request was accepted
                self._record.end(request.number, now, error.failure)
                self._write_audit("ended", request, code=error.failure.code.value)
                continue
            assert self._prepared is not None
            spec = replace(
                spec, code_sha256=self._prepared.code_sha256, environment=self._prepared.environment
            )
            self._inbox.put(Submit(spec, (plan,)))
            reach("gateway.requested")
            self._record.mark_submitted(request.number, now)
            reach("gateway.submitted")
            submitted.append(request)
        return submitted

    def _wait_for_token(self, now: float) -> None:
        """End the requests that have waited for the application's log-in for as long as for other outages."""
        if not self._token.trouble:
            return
        text = "the site cannot log in at the application: %s" % self._token.trouble
        for request in self._record.choose_next(self.template.name, self.template.quota.running):
            if now - request.at < self.template.ceilings.outage:
                self._record.set_note(request.number, text)
                continue
            failure = RequestFailure(
                FailureCode.SITE_UNAVAILABLE, text, "Send it again later, or ask the site"
            )
            self._record.end(request.number, now, failure)
            self._write_audit("ended", request, code=failure.code.value)

    def cancel(self, requests: list[RecordedRequest], now: float) -> None:
        """Cancel the runs of these requests; what was not submitted yet has ended."""
        waiting = [request for request in requests if request.submitted is None]
        due = [request for request in requests if request.submitted is not None and self._is_due(request)]
        if waiting or due:
            # A gateway that died may have handed over a run that the record has as waiting.
            names = tuple(request.run for request in (*waiting, *due))
            self._inbox.put(Cancel(names, "requested through the gateway"))
        for request in (*waiting, *due):
            code = FailureCode(request.cancel) if request.cancel else FailureCode.EXPIRED
            if not request.cancel:
                self._record.ask_cancel(request.number, code.value, "its deadline was over")
            if request.submitted is None:
                self._record.end(request.number, now, _cancelled(code, request.note))
                self._write_audit("ended", request, code=code.value)
            else:
                self._cancelled[request.number] = time.monotonic()
                self._write_audit("cancelling", request, code=code.value)

    def _is_due(self, request: RecordedRequest) -> bool:
        """Return True if the cancellation of a run was not requested, or long ago."""
        last = self._cancelled.get(request.number)
        return last is None or time.monotonic() - last >= REPEAT_CANCEL

    # Runs to requests.

    def follow(self, now: float) -> list[RunEvent]:
        """Record what has happened to the runs since; return what their senders may want to know."""
        journal = self._open_journal()
        if journal is None:
            return []
        cursor = self._record.cursor(self.template.name)
        newest = journal.last_entry()
        if newest == cursor:
            return []
        events: list[RunEvent] = []
        rows = list(islice(journal.entries(after=cursor, kinds=_KINDS), _MOST_ENTRIES))
        with self._record.transaction():
            for row in rows:
                request = self._record.request_by_run(row.entry.run)
                if request is not None:
                    events += self._follow(journal, request, row.entry, now)
            # What is of no other kind up to the newest entry is not looked at again.
            found = rows[-1].number if rows else cursor
            last = found if len(rows) == _MOST_ENTRIES else max(found, newest)
            self._record.set_cursor(self.template.name, last)
        if any(row.entry.kind in _ENDS for row in rows):
            reach("gateway.followed")
        return events

    def current_attempt(self, request: RecordedRequest) -> Attempt | None:
        """Return the attempt of a request's run that is under way; None if there is none."""
        journal = self._open_journal()
        run = journal.run(request.run) if journal is not None else None
        return (
            journal.attempt(run.current) if journal is not None and run is not None and run.current else None
        )

    def _open_journal(self) -> Journal | None:
        if self._journal is None and not is_blank(self.experiment.journal):
            self._journal = Journal(self.experiment.journal)
        return self._journal

    def _follow(
        self, journal: Journal, request: RecordedRequest, entry: JournalEntry, now: float
    ) -> list[RunEvent]:
        if request.state not in (RequestState.ACCEPTED, RequestState.RUNNING):
            return []  # it was answered; the engineer went on with its run by hand
        match entry.kind:
            case EntryKind.STARTED:
                attempt = journal.attempt(entry.token or "")
                self._record.start(request.number, now)
                facts = {"host": attempt.host, "attempt": attempt.number} if attempt else {}
                return [RunEvent(request, "started", facts)]
            case EntryKind.INTENDED:
                raised = {key: entry.data[key] for key in ("memory", "disk", "time") if entry.data.get(key)}
                facts = {**raised, "reason": str(entry.data.get("reason", ""))[:500]}
                return [RunEvent(request, "raised", facts)] if raised else []
            case EntryKind.ENDED:
                attempt = journal.attempt(entry.token or "")
                if attempt is None or attempt.outcome is None:
                    return []
                if any(item.failed == ErrorKind.REFUSED.value for item in attempt.account.data):
                    self._token.refuse()
                return [
                    RunEvent(
                        request, "attempt", {"attempt": attempt.number, "outcome": attempt.outcome.value}
                    )
                ]
            case EntryKind.HELD_BACK:
                # Somebody would have to decide, and its sender waits: it is answered, with the reason.
                note = str(entry.data.get("reason", ""))[:500]
                self._record.ask_cancel(request.number, FailureCode.SITE_UNAVAILABLE.value, note)
                return []
            case EntryKind.FINISHED:
                self._end(request, now, None)
            case EntryKind.CANCELLED:
                code = FailureCode(request.cancel) if request.cancel else FailureCode.CANCELLED
                self._end(request, now, _cancelled(code, request.note or "cancelled at the site"))
            case EntryKind.FAILED:
                run = journal.run(entry.run)
                assert run is not None
                attempt = journal.attempt(run.last.token) if run.last else None
                spec = journal.spec(run.spec)
                self._end(request, now, failure_of(run, attempt, spec, self.template))
        return []

    def _end(self, request: RecordedRequest, now: float, failure: RequestFailure | None) -> None:
        try:
            self._record.end(request.number, now, failure)
        except ImpossibleRequestStep:
            return  # two entries of one batch end it: cancelled while it finished
        self._cancelled.pop(request.number, None)
        self._write_audit("ended", request, code=failure.code.value if failure else "finished")

    def _write_audit(self, event: str, request: RecordedRequest, **facts: object) -> None:
        self._audit.write(
            event,
            request=request.number,
            id=request.shown_id,
            user=request.user,
            template=request.template,
            run=request.run,
            **facts,
        )

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def _cancelled(code: FailureCode, note: str) -> RequestFailure:
    texts = {
        FailureCode.CANCELLED: ("the request was cancelled", ""),
        FailureCode.EXPIRED: (
            "the deadline of the request was over before it had a result",
            "Send it again with a later deadline, or ask for less",
        ),
        FailureCode.SITE_UNAVAILABLE: (
            "the site has stopped the run",
            "Send it again later, or ask the site",
        ),
    }
    text, advice = texts.get(code, texts[FailureCode.CANCELLED])
    if note.startswith("cancelled "):  # by its sender, or at the site
        return RequestFailure(code, "the request was %s" % note, advice)
    return RequestFailure(code, "%s: %s" % (text, note) if note else text, advice)
