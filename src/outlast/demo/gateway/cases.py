"""The five requests of the demo, the answers that they must get, and what must have happened on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outlast.demo.gateway.gateway_files import INPUT, MEMORY, TEMPLATE, undisturbed_result
from outlast.domain.model import Attempt, Outcome
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requester.client_answer import Answer
from outlast.gateway.requester.client_request import training_body
from outlast.text import counted
from outlast.units import show_size

#: Megabytes of a batch for which the memory that a job has at first is not enough.
LARGE_BATCH = 500


@dataclass(frozen=True)
class Case:
    """One of the requests, and the answer that it must get."""

    id: str
    body: bytes
    #: The failure's code; empty: a result.
    code: str = ""
    epochs: int = 0
    #: How one of its attempts must have ended.
    outcome: Outcome | None = None


def make_cases() -> tuple[Case, ...]:
    """Return the five requests, in the order in which they are sent."""
    return (
        Case("good", _body(epochs=60), epochs=60),
        Case("memory", _body(epochs=40, batch_mb=LARGE_BATCH), epochs=40, outcome=Outcome.OUT_OF_MEMORY),
        Case("malformed", _body(epochs=5)[:-9], code="invalid_request"),
        Case("cancelled", _body(epochs=10000), code="cancelled", outcome=Outcome.CANCELLED),
        Case("killed", _body(epochs=100), epochs=100, outcome=Outcome.EVICTED),
    )


def _body(**parameters: int) -> bytes:
    return training_body(TEMPLATE, parameters=parameters, inputs={"points": INPUT}, resources={})


def find_wrong(case: Case, answers: Sequence[Answer], attempts: Sequence[Attempt]) -> list[str]:
    """Return what is wrong with the answers to a request, and what did not happen to it, in sentences."""
    if not answers:
        return ["the request `%s` was not answered" % case.id]
    first = answers[0]
    wrong = []
    if any((one.kind, one.facts, one.files) != (first.kind, first.facts, first.files) for one in answers):
        wrong.append("the request `%s` got different answers" % case.id)
    if first.text("code") != case.code:
        wrong.append("the request `%s` got this answer: %s" % (case.id, describe_answers(answers)))
    elif not case.code:
        content = first.files[0].content if first.files else None
        if json.loads(content or b"null") != undisturbed_result(case.epochs):
            wrong.append("the model of `%s` is not that of an undisturbed training" % case.id)
    if case.outcome is not None and case.outcome not in [attempt.outcome for attempt in attempts]:
        wrong.append("no job of `%s` ended as %s" % (case.id, case.outcome.value))
    return wrong


def describe_answers(answers: Sequence[Answer]) -> str:
    """Return the answer to a request in a few words."""
    if not answers:
        return "NONE"
    text = "result" if answers[0].kind == "result" else "failure %s" % answers[0].text("code")
    return text if len(answers) == 1 else "%s (%d times)" % (text, len(answers))


def describe_attempts(request: RecordedRequest | None, attempts: Sequence[Attempt]) -> str:
    """Return what happened to a request."""
    if request is None or not request.run:
        return "its body ends in the middle; nothing started"
    parts = []
    for before, after in pairwise(attempts):
        if before.outcome is Outcome.OUT_OF_MEMORY:
            sizes = show_size(before.memory or MEMORY), show_size(after.memory or MEMORY)
            parts.append("out of memory with %s, raised to %s" % sizes)
        else:
            parts.append(before.outcome.value if before.outcome else "not ended")
        if after.account.resumed:
            parts.append("resumed at epoch %s" % after.account.resumed)
    if request.cancel:
        parts.append("ended by the message")
    jobs = counted(len(attempts), "job")
    return "%s: %s" % (jobs, ", ".join(parts)) if parts else jobs
