"""`outlast gateway demo` answers five requests in spite of kills, or fails, and leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.cli import ERROR, INTERRUPTED
from outlast.demo.gateway.cases import Case, describe_answers, find_wrong, make_cases
from outlast.demo.gateway.gateway_files import undisturbed_result
from outlast.domain.model import Attempt, AttemptState, Outcome
from outlast.gateway.requester.client_answer import Answer, AnsweredFile
from support import clusters
from support.broker import shared_broker, until
from support.experiments import Lab

SCRIPT = clusters.SCRIPTS / "rabbitmq"


def processes_of(place: Path) -> list[int]:
    """Return the processes that have something in `place` in their arguments or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or belongs to another user
        if b"%s/outlast-demo" % str(place).encode() in words:
            found.append(int(folder.name))
    return found


@pytest.fixture
def temporary(lab: Lab) -> Path:
    shared_broker()  # installs RabbitMQ, or skips the test
    place = lab.root / "tmp"
    place.mkdir()
    lab.environment["TMPDIR"] = str(place)
    return place


def test_the_demo_kills_gateway_broker_and_a_job_and_answers_five_requests(lab: Lab, temporary: Path) -> None:
    ended = lab.outlast("gateway", "demo", SCRIPT)
    assert ended.returncode == 0, ended.output
    story = [
        "demo: the application sends five requests",
        "demo: killing the gateway (SIGKILL)",
        "demo: killing the job of the request `killed`",
        "demo: the application cancels the request `cancelled`",
        "demo: killing the broker (kill -9)",
        "demo: runs have ended without a broker",
        "gateway: drained",
        "good        result ",
        "memory      result                   2 jobs: out of memory with 400 MB, raised",
        "malformed   failure invalid_request",
        "cancelled   failure cancelled",
        "killed      result                   2 jobs: evicted, resumed at epoch",
        "5 requests, 5 answers, 0 unanswered, ",
        "bit for bit",
        "outlast gateway init lab",
    ]
    places = [ended.stdout.find(part) for part in story]
    assert -1 not in places and places == sorted(places), ended.output
    assert [line for line in ended.stdout.splitlines() if len(line) > 80] == []
    assert "\033" not in ended.stdout, "colours are for terminals"
    assert list(temporary.iterdir()) == []
    assert processes_of(temporary) == []


def test_an_interrupted_demo_ends_all_processes_that_it_started(lab: Lab, temporary: Path) -> None:
    process = lab.start("gateway", "demo", SCRIPT)
    until(lambda: list(temporary.glob("outlast-demo-*/gateway/requests.sqlite")), "the gateway is not up")
    assert processes_of(temporary)
    process.send_signal(signal.SIGINT)
    ended = lab.finish(process)
    assert ended.returncode == INTERRUPTED and "interrupted" in ended.stderr, ended.output
    assert list(temporary.iterdir()) == []
    until(lambda: processes_of(temporary) == [], lambda: "left: %s" % processes_of(temporary))


def test_where_rabbitmq_cannot_be_had_one_sentence_says_why(lab: Lab) -> None:
    script = lab.root / "none"
    script.write_text("#!/bin/sh\necho noise >&2\necho 'missing, and only root can install: x' >&2\nexit 1\n")
    script.chmod(0o755)
    ended = lab.outlast("gateway", "demo", script)
    assert ended.returncode == ERROR
    assert ended.stderr.splitlines() == [
        "the demo needs RabbitMQ, which cannot be started here: missing, and only root can install: x"
    ]


# The verdict, with made-up answers.


def result(case: Case, **changes: Any) -> Answer:
    import json

    content = json.dumps({**undisturbed_result(case.epochs), **changes}).encode()
    return Answer("result", {"kind": "result"}, (AnsweredFile("model", len(content), "", content),))


def attempts(*outcomes: Outcome) -> Sequence[Attempt]:
    plain = Attempt("line-000001", 1, "t", AttemptState.ENDED, 0.0)
    return [replace(plain, number=number, outcome=one) for number, one in enumerate(outcomes, 1)]


def test_a_request_without_its_answer_or_its_trouble_fails_the_demo() -> None:
    good, memory, malformed, _, killed = make_cases()
    finished, lacking = attempts(Outcome.FINISHED), attempts(Outcome.OUT_OF_MEMORY, Outcome.FINISHED)
    refusal = Answer("failure", {"code": "invalid_request"})
    assert find_wrong(good, [result(good)], finished) == []
    assert find_wrong(memory, [result(memory)] * 2, lacking) == []
    assert find_wrong(malformed, [refusal], ()) == []

    assert "was not answered" in find_wrong(good, [], finished)[0]
    assert "got this answer" in find_wrong(good, [refusal], finished)[0]
    assert "different answers" in find_wrong(good, [result(good), refusal], finished)[0]
    assert "undisturbed" in find_wrong(good, [result(good, epoch=1)], finished)[0]
    assert "ended as out-of-memory" in find_wrong(memory, [result(memory)], finished)[0]
    assert "ended as evicted" in find_wrong(killed, [result(killed)], lacking)[0]
    assert describe_answers([refusal, refusal]) == "failure invalid_request (2 times)"
