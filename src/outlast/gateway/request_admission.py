"""Admission: whether a request becomes a run, by its template, its user, the quotas and its deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outlast.gateway.message_formats.encoding import encode_failure, encode_status
from outlast.gateway.record.record import Origin, Record
from outlast.gateway.record.rows import RecordedMessage, RecordedRequest
from outlast.gateway.requests import FailureCode, RequestFailure, RequestRefused, TrainingRequest
from outlast.gateway.settings import Quota, Template

DAY = 86400.0

#: Raises RequestRefused unless the request of this user can become the run of this number.
Plan = Callable[[Template, TrainingRequest, str, int, float], object]


class Admission:
    """Checks requests; `plan` makes the run of a request, as it will be made when it is submitted."""

    def __init__(self, record: Record, templates: Mapping[str, Template], plan: Plan) -> None:
        self._record = record
        self._templates = templates
        self._plan = plan
        #: What was counted in this batch, by what is counted.
        self._counts: dict[tuple[str, ...], int] = {}

    def begin_batch(self) -> None:
        """Count anew. Within a transaction only what it accepts itself changes the counts (`note_accepted`).

        Without that, each request of a batch would cost as much as there are requests that wait.
        """
        self._counts.clear()

    def note_accepted(self, request: RecordedRequest) -> None:
        """Count a request of this batch."""
        for key in _counted(request.template, request.user):
            if key in self._counts:
                self._counts[key] += 1

    def check(self, origin: Origin, body: TrainingRequest, now: float) -> str:
        """Return the name of the template of a request that is accepted. Raise RequestRefused."""
        template = self._templates.get(body.template)
        if template is None:
            known = ", ".join(sorted(self._templates))
            raise RequestRefused(
                RequestFailure(
                    FailureCode.UNKNOWN_TEMPLATE,
                    "there is no template of this name",
                    "The templates are: %s" % known,
                )
            )
        if template.users and origin.user not in template.users:
            raise RequestRefused(
                RequestFailure(
                    FailureCode.FORBIDDEN,
                    "user %s may not use template %s" % (origin.user or "(unknown)", template.name),
                    "Ask the site to add the user to `users` of the template",
                )
            )
        self._check_quota(template.quota, template.name, origin.user, now)
        self._plan(template, body, origin.user, self._record.next_number(), now)
        return template.name

    def _check_quota(self, quota: Quota, template: str, user: str, now: float) -> None:
        who = "user %s" % user if user else "users whose name is unknown"
        of_user, of_all, of_day = _counted(template, user)
        open_requests, accepted_since = self._record.open_requests, self._record.accepted_since
        if self._count(of_user, lambda: open_requests(template, user)) >= quota.waiting_per_user:
            _refuse_quota(
                "%s may have %d requests under way or waiting" % (who, quota.waiting_per_user),
                "one has ended",
            )
        if self._count(of_all, lambda: open_requests(template)) >= quota.waiting:
            _refuse_quota("the site accepts %d requests at the same time" % quota.waiting, "some have ended")
        if self._count(of_day, lambda: accepted_since(template, user, now - DAY)) >= quota.per_day_per_user:
            _refuse_quota("%s may send %d requests a day" % (who, quota.per_day_per_user), "a day has passed")

    def _count(self, key: tuple[str, ...], read: Callable[[], int]) -> int:
        if key not in self._counts:
            self._counts[key] = read()
        return self._counts[key]

    # Answers to messages that are no request of their own.

    def answer_message(
        self, message: RecordedMessage, origin: Origin, failure: RequestFailure, now: float
    ) -> None:
        """Put the failure of a message that makes no request into the outbox."""
        self._answer(message, origin, encode_failure(origin.dialect, origin.id, failure), "failure", now)

    def answer_status(
        self, message: RecordedMessage, origin: Origin, known: RecordedRequest, now: float
    ) -> None:
        """Put the state of a request into the outbox, as the answer to a message that asks for it."""
        found = self._record.request(known.number) or known
        facts: dict[str, object] = {"note": found.note, "cancelling": bool(found.cancel)}
        if found.failure is not None:
            facts["code"] = found.failure.code.value
        body = encode_status(origin.dialect, found.id, found.state, facts)
        self._answer(message, origin, body, "status", now)

    def _answer(self, message: RecordedMessage, origin: Origin, body: bytes, kind: str, now: float) -> None:
        if origin.reply_to:
            self._record.add_answer(
                routing_key=origin.reply_to,
                correlation=origin.correlation,
                kind=kind,
                now=now,
                body=body,
                message=message.number,
            )


def _counted(template: str, user: str) -> tuple[tuple[str, ...], ...]:
    """Return the keys of what a quota counts: the user's open requests, those of all, the user's of a day."""
    return ("user", template, user), ("all", template), ("day", template, user)


def _refuse_quota(text: str, until: str) -> None:
    raise RequestRefused(RequestFailure(FailureCode.OVER_QUOTA, text, "Send it again when %s" % until))
