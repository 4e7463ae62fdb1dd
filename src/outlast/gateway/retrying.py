"""What the engineer does about a request that is over: run it again, or send its answer again.

A running gateway follows the journal in a transaction of the record. All that is decided here is decided in
one, too: what happens to a run meanwhile is followed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from outlast.controller.inbox import Inbox, Retry, under_way_elsewhere
from outlast.controller.submission import prepare
from outlast.domain.model import Run, RunState, Spec
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.record.record import Record
from outlast.gateway.record.rows import RecordedAnswer, RecordedRequest
from outlast.gateway.requests import RequestRefused, RequestState
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank


@dataclass(frozen=True)
class Retried:
    """What a retry did: `answer` (sent again), `run` (it runs again) or `result` (its run has finished)."""

    what: str
    text: str


#: Makes the spec of a retried run: its request, its experiment, the time.
MakeSpec = Callable[[RecordedRequest, Experiment, float], Spec]

_SECOND_ANSWER = "its sender gets a second answer, with the same correlation id"


def replay_answer(
    gateway: GatewayDirectory, record: Record, request: RecordedRequest, now: float
) -> RecordedAnswer:
    """Make the last answer to a request due again, and return it. Raise BadInput if there is none."""
    with record.transaction():
        answers = [one for one in record.answers_of(request.number) if one.state != "withdrawn"]
        if not answers:
            raise BadInput(_why_no_answer(gateway, request))
        answer = answers[-1]
        if answer.state == "waiting":
            tried = "it was tried %d times: %s" % (answer.tries, answer.reason or "no error")
            raise BadInput("the answer to request %d is being sent; %s" % (request.number, tried))
        if request.state is RequestState.UNDELIVERED:
            record.reopen(request.number, _state_before(request), now)
        record.send_again(answer.number, now)
    return answer


def _why_no_answer(gateway: GatewayDirectory, request: RecordedRequest) -> str:
    if not request.reply_to:
        place = gateway.experiment(request.template) / "results" / request.run
        text = "request %d asked for no answer (it had no reply_to)" % request.number
        return text + ("; its results are in %s" % place if request.run and request.failure is None else "")
    return "request %d is %s and has no answer yet; `outlast gateway explain %d` shows it" % (
        request.number,
        request.state.value,
        request.number,
    )


def _state_before(request: RecordedRequest) -> RequestState:
    """Return the state in which an undelivered request was before: a refused one never had a run."""
    return RequestState.ENDED if request.run else RequestState.REFUSED


def retry_request(
    gateway: GatewayDirectory,
    record: Record,
    request: RecordedRequest,
    now: float,
    make_spec: MakeSpec | None = None,
) -> Retried:
    """Send the answer of an undelivered request again, or run one that failed again. Raise BadInput."""
    if request.state is RequestState.UNDELIVERED:
        return _deliver_again(record, request, now)
    _check(request, now)
    if request.submitted is None:
        record.reopen(request.number, RequestState.ACCEPTED, now, submitted=False)
        return Retried("run", "it is submitted as run %s; %s" % (request.run, _SECOND_ANSWER))
    experiment = Experiment(gateway.experiment(request.template))
    spec = None
    if _can_run_again(_look_up(experiment, request)):
        # Before the transaction: packing the code takes a while.
        spec = (make_spec or _SpecMaker(gateway))(request, experiment, now)
    with record.transaction():
        return _run_again(experiment, record, request, spec, now)


def _deliver_again(record: Record, request: RecordedRequest, now: float) -> Retried:
    with record.transaction():
        dead = [one for one in record.answers_of(request.number) if one.state == "dead"]
        record.reopen(request.number, _state_before(request), now)
        if dead:
            record.send_again(dead[-1].number, now)
    # Without one, its answer is made again.
    return Retried("answer", "its answer is sent to %s again" % request.reply_to)


def _check(request: RecordedRequest, now: float) -> None:
    """Raise BadInput unless a request has failed and was answered."""
    number = request.number
    if request.state is RequestState.REFUSED or not request.run:
        raise BadInput(
            "request %d was refused, so there is nothing to run; its sender can send it again under another "
            "id, and `outlast gateway replay %d` sends the refusal again" % (number, number)
        )
    if request.state in (RequestState.ACCEPTED, RequestState.RUNNING):
        raise BadInput(
            "request %d is %s; `outlast gateway cancel %d` cancels it" % (number, request.state.value, number)
        )
    if request.state is RequestState.ENDED:
        raise BadInput(
            "request %d has ended and its answer is being sent; `outlast gateway explain %d` shows it, and "
            "`outlast gateway retry %d` works once it was answered" % (number, number, number)
        )
    if request.failure is None:
        raise BadInput(
            "request %d has a result; `outlast gateway replay %d` sends it again" % (number, number)
        )
    if request.deadline is not None and request.deadline <= now:
        raise BadInput(
            "the deadline of request %d is over, so its sender does not wait for it any more; it has to be "
            "sent again under another id" % number
        )


def _can_run_again(run: Run) -> bool:
    return run.state in (RunState.FAILED, RunState.CANCELLED, RunState.HELD_BACK)


def _look_up(experiment: Experiment, request: RecordedRequest, spec: Spec | None = None) -> Run:
    """Return the run of a request. Raise BadInput if there is none, or `spec` cannot be submitted now."""
    journal = None if is_blank(experiment.journal) else Journal(experiment.journal)
    try:
        run = journal.run(request.run) if journal is not None else None
        if journal is None or run is None:
            raise BadInput(
                "the run %s is not in the journal of %s; was it moved or removed?"
                % (request.run, experiment.root)
            )
        elsewhere = under_way_elsewhere(journal, spec) if spec is not None else ""
        if elsewhere:
            raise BadInput(elsewhere)
        return run
    finally:
        if journal is not None:
            journal.close()


def _run_again(
    experiment: Experiment, record: Record, request: RecordedRequest, spec: Spec | None, now: float
) -> Retried:
    """Reopen a request in the caller's transaction; its run is requested before that is committed."""
    run = _look_up(experiment, request, spec)
    record.reopen(request.number, RequestState.ACCEPTED, now)
    if run.state is RunState.FINISHED:  # its result could not be sent, or somebody has retried it by hand
        record.end(request.number, now, None)
        return Retried("result", "its run %s has finished; %s" % (run.name, _SECOND_ANSWER))
    if not _can_run_again(run):
        return Retried("run", "its run %s is under way again; %s" % (run.name, _SECOND_ANSWER))
    if spec is None:
        raise BadInput("the run %s has ended just now; type the same again" % run.name)
    # If this process dies before the commit, the run is under way at the next try.
    Inbox(experiment.inbox).put(Retry(spec, (run.name,)))
    return Retried("run", "its run %s is retried from its checkpoints; %s" % (run.name, _SECOND_ANSWER))


class _SpecMaker:
    """Makes the spec of a retried run, from the template as it is now."""

    def __init__(self, gateway: GatewayDirectory) -> None:
        self._gateway = gateway

    def __call__(self, request: RecordedRequest, experiment: Experiment, now: float) -> Spec:
        """Pack the template's code into the experiment and return the spec. Raise BadInput or NotWritable."""
        from outlast.gateway.configuration.settings_file import read_settings
        from outlast.gateway.configuration.template_file import read_params, read_template
        from outlast.gateway.planning.planner import Planner
        from outlast.gateway.web_application.application import Application

        settings = read_settings(self._gateway)
        if request.template not in settings.templates:
            raise BadInput(
                "the template %s is not in gateway.yaml any more; list it there to retry request %d"
                % (request.template, request.number)
            )
        template = read_template(self._gateway.template(request.template), request.template, settings)
        parsed = read_params(template)
        planner = Planner(settings, {template.name: parsed}, Application(settings.application, self._gateway))
        try:
            spec, _ = planner(template, request.body, request.user, request.number, now)
        except RequestRefused as error:
            details = "; ".join((error.failure.message, *error.failure.mistakes))
            raise BadInput(
                "the template %s would refuse request %d now: %s" % (template.name, request.number, details)
            ) from None
        prepared = prepare(experiment, parsed, source=template.directory)
        return replace(spec, code_sha256=prepared.code_sha256, environment=prepared.environment)
