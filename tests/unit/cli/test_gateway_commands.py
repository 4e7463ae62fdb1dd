"""The commands of the gateway on a record that was filled by its own methods."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outlast.cli import gateway_common, group
from outlast.cli.commands.gateway_commands.explain import without_secrets
from outlast.controller.inbox import Inbox, Retry
from outlast.domain.model import EntryKind, JournalEntry
from outlast.errors import BadInput
from outlast.exchange.experiment import Experiment
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.monitoring.heartbeat import Heartbeat, write_heartbeat
from outlast.gateway.record.record import Origin, Record
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    InputReference,
    Properties,
    PublishResult,
    RequestFailure,
    RequestState,
    TrainingRequest,
)
from outlast.gateway.retrying import retry_request
from support.gateways import TEMPLATE, write_gateway
from support.journals import SPEC, added, ended, intended, writer

OUT_OF_MEMORY = RequestFailure(FailureCode.OUT_OF_MEMORY, "it needs more memory", "Request more.", attempts=3)
INPUTS = {"book": InputReference("https://u:pw@app.example.org/a?signature=s3cr3t")}
SECRET_PARAMETER = "  key: {type: text, default: x, secret: yes}\ninputs:"


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayDirectory:
    files = write_gateway(tmp_path / "lab")
    files.write("templates/pages/template.yaml", TEMPLATE.replace("inputs:", SECRET_PARAMETER, 1))
    params = files.directory.template("pages") / "params.yaml"
    params.write_text(params.read_text().replace("--note={note}", "--note={note} --key={key}"))
    return files.directory


@pytest.fixture
def record(gateway: GatewayDirectory) -> Iterator[Record]:
    found = Record(gateway.record, create=True)
    yield found
    found.close()


def call(gateway: GatewayDirectory, command: str, *arguments: str, at: bool = False) -> Result:
    """Call a command with DIR, or with `-C DIR` if `at`."""
    place = ["-C", str(gateway.root)] if at else [str(gateway.root)]
    return CliRunner().invoke(group, ["gateway", command, *place, *arguments])


def ask(gateway: GatewayDirectory, command: str, *arguments: str, at: bool = False) -> Any:
    result = call(gateway, command, *arguments, "--json", at=at)
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def error_of(result: Result) -> str:
    assert isinstance(result.exception, BadInput), (result.output, result.exception)
    return str(result.exception)


def origin(id: bytes, user: str = "ann", reply_to: str = "results") -> Origin:
    return Origin(id, "digest-%s" % id.hex(), "train", "outlast", user, reply_to, id)


def accept(record: Record, id: bytes, user: str = "ann", reply_to: str = "results") -> int:
    body = TrainingRequest("pages", {"epochs": 3, "key": "s3cr3t"}, INPUTS, {"memory": 8e9, "cpus": 2})
    made = record.add_request(origin(id, user, reply_to), body, time.time(), run_of="pages")
    return made.number


def refuse(record: Record, id: bytes, template: str = "pages") -> int:
    failure = RequestFailure(FailureCode.UNKNOWN_TEMPLATE, "there is no template of this name", "", ("a: b",))
    made = record.add_request(origin(id), TrainingRequest(template), time.time(), failure=failure)
    return made.number


def end(record: Record, number: int, failure: RequestFailure | None) -> None:
    now = time.time()
    record.mark_submitted(number, now)
    record.start(number, now)
    record.end(number, now, failure)


def answer(record: Record, number: int, kind: str = "failure", state: str = "confirmed") -> int:
    """Put an answer into the outbox and make it confirmed, dead or waiting; close its request."""
    now = time.time()
    made = record.add_answer(
        routing_key="results", correlation=b"c", kind=kind, now=now, body=b"{}", request=number
    )
    if state == "confirmed":
        record.confirm(made, now)
        record.close_request(number, RequestState.ANSWERED, now)
    elif state == "dead":
        record.retire(made, "dead", "returned: no such queue")
        record.close_request(number, RequestState.UNDELIVERED, now)
    return made


def state_of(record: Record, number: int) -> str:
    return found(record, number).state.value


def found(record: Record, number: int) -> RecordedRequest:
    request = record.request(number)
    assert request is not None
    return request


def audited(gateway: GatewayDirectory) -> list[str]:
    return [json.loads(line)["event"] for line in gateway.audit.read_text().splitlines()]


def beat(gateway: GatewayDirectory, **facts: Any) -> None:
    now = time.time()
    default = Heartbeat(os.getpid(), os.uname().nodename, now - 60, now, now - 50, broker="RabbitMQ 4.0.5")
    write_heartbeat(gateway.heartbeat, replace(default, **facts))


# Finding the gateway and the request


def test_a_directory_that_is_no_gateway_is_answered_with_what_to_type(tmp_path: Path) -> None:
    for command in ("status", "requests", "drain", "quarantine", "check", "send"):
        arguments = ["gateway", command, str(tmp_path)]
        result = CliRunner().invoke(group, [*arguments, *(["--template", "x"] if command == "send" else [])])
        assert "`outlast gateway init %s`" % tmp_path in error_of(result)


def test_before_the_first_start_the_commands_say_how_to_start_it(gateway: GatewayDirectory) -> None:
    assert "`outlast gateway up %s`" % gateway.root in error_of(call(gateway, "status"))


def test_a_request_is_found_by_its_id_its_number_its_run_and_a_part_that_no_other_has(
    gateway: GatewayDirectory, record: Record
) -> None:
    first, second = accept(record, b"3f2a-1111"), accept(record, b"77bc-1111")
    raw = accept(record, b"\xffid\n")
    for text in ("3f2a-1111", "1", "pages-000001", "3f2", "000001"):
        assert ask(gateway, "explain", text, at=True)["number"] == first
    for text in ("77b…", "2"):
        assert ask(gateway, "explain", text, at=True)["number"] == second
    shown = found(record, raw).shown_id
    assert ask(gateway, "explain", shown, at=True)["number"] == raw
    assert "several requests: 2 (77bc-1111), 1 (3f2a-1111)" in error_of(
        call(gateway, "explain", "1111", at=True)
    )
    assert "`outlast gateway requests`" in error_of(call(gateway, "explain", "none", at=True))
    assert "`outlast gateway requests`" in error_of(call(gateway, "explain", "", at=True))


# requests


def test_requests_are_listed_with_the_newest_at_the_end_and_by_state_template_and_user(
    gateway: GatewayDirectory, record: Record
) -> None:
    accept(record, b"a"), accept(record, b"b", "bob"), refuse(record, b"c", "other")
    end(record, 2, OUT_OF_MEMORY)

    def numbers(*options: str) -> list[int]:
        return [one["number"] for one in ask(gateway, "requests", *options)["requests"]]

    assert numbers() == [1, 2, 3]
    assert numbers("--last", "2") == [2, 3]
    assert numbers("--state", "accepted", "--state", "refused") == [1, 3]
    assert numbers("--template", "other") == [3]
    assert numbers("--user", "bob") == [2]
    text = call(gateway, "requests", "--last", "2").output
    assert "newest 2 requests" in text
    assert "out_of_memory" in text
    assert "s3cr3t" not in text + json.dumps(ask(gateway, "requests"))


def test_a_request_that_is_to_be_cancelled_is_shown_as_such(
    gateway: GatewayDirectory, record: Record
) -> None:
    accept(record, b"a")
    record.ask_cancel(1, "cancelled")
    assert "cancelling" in call(gateway, "requests").output
    assert ask(gateway, "requests")["requests"][0]["cancelling"] == "cancelled"


# status


def test_status_shows_a_gateway_that_runs_and_what_waits(gateway: GatewayDirectory, record: Record) -> None:
    beat(gateway, queues={"train": "consumed"}, troubles={"pages": "the scheduler does not respond"})
    accept(record, b"a"), refuse(record, b"b", "../x"), refuse(record, b"c", "y")
    made = answer(record, 2, state="waiting")
    record.put_off(made, time.time(), PublishResult.RETURNED, "no such queue")
    text = call(gateway, "status").output
    assert "running since" in text and "connected to RabbitMQ 4.0.5 since" in text
    assert "train: consumed" in text and "pages: the scheduler does not respond" in text
    assert "1 waits for the broker" in text and "tried 1 time (returned: no such queue)" in text
    found = ask(gateway, "status")
    assert found["running"] and found["connected"]
    assert found["requests"] == {"(others)": {"refused": 2}, "pages": {"accepted": 1}}
    assert found["answers"]["waiting"] == 1 and found["answers"]["reason"] == "returned: no such queue"


def test_status_shows_since_when_and_why_it_is_not_connected(
    gateway: GatewayDirectory, record: Record
) -> None:
    reason = "broker:5672 refused the user or the password"
    beat(gateway, connected_since=None, down_since=time.time() - 5, reason=reason)
    text = call(gateway, "status").output
    assert "not connected since" in text and reason in text
    assert "`outlast gateway check %s`" % gateway.root in text
    assert not ask(gateway, "status")["connected"]


def test_status_shows_that_a_gateway_is_blocked_although_it_is_connected(
    gateway: GatewayDirectory, record: Record
) -> None:
    beat(gateway, reason="the broker has a memory alarm")
    assert "; the broker has a memory alarm" in call(gateway, "status").output


@pytest.mark.parametrize("killed", [False, True])
def test_status_of_a_gateway_that_does_not_run_says_what_waits_for_it(
    gateway: GatewayDirectory, record: Record, killed: bool
) -> None:
    accept(record, b"a")
    if killed:
        beat(gateway, at=time.time() - 3600)
    text = call(gateway, "status").output
    assert "not running" in text and "`outlast gateway up %s`" % gateway.root in text
    assert "1 request and 0 answers wait for it" in text
    assert ("last sign of life" in text) == killed


def test_status_names_quarantined_messages_a_drain_and_undelivered_answers(
    gateway: GatewayDirectory, record: Record
) -> None:
    beat(gateway)
    put_aside(record, b"{")
    record.set_about("drain", "yes")
    answer(record, refuse(record, b"a"), state="dead")
    text = call(gateway, "status").output
    for expected in ("quarantine", "drain --off %s" % gateway.root, "--state undelivered"):
        assert expected in text


# explain


def test_explain_shows_a_request_with_its_states_and_answers_and_no_secret(
    gateway: GatewayDirectory, record: Record
) -> None:
    number = accept(record, b"id-1")
    end(record, number, OUT_OF_MEMORY)
    made = answer(record, number, state="waiting")
    record.put_off(made, time.time(), PublishResult.NACKED, "the queue is full")
    text = call(gateway, "explain", "id-1", at=True).output
    place = gateway.experiment("pages")
    for expected in (
        *("queue train (outlast), user ann", "epochs = 3", "key = (hidden)", "memory = 8 GB"),
        *("book = https://app.example.org/a?…", "handed to the controller", "ended: out_of_memory"),
        *("`outlast explain pages-000001 -C %s`" % place, "it needs more memory", "Request more."),
        "nacked: the queue is full",
    ):
        assert expected in text
    assert "s3cr3t" not in text + json.dumps(ask(gateway, "explain", "id-1", at=True))


def test_all_parameters_are_hidden_if_it_is_not_known_which_are_secret(
    gateway: GatewayDirectory, record: Record
) -> None:
    accept(record, b"a")
    (gateway.template("pages") / "template.yaml").write_text("parameters: [")
    assert ask(gateway, "explain", "1", at=True)["body"]["parameters"] == {
        "epochs": "(hidden)",
        "key": "(hidden)",
    }


def test_a_message_of_several_lines_is_shown_in_several_lines(
    gateway: GatewayDirectory, record: Record
) -> None:
    number = accept(record, b"a")
    end(record, number, replace(OUT_OF_MEMORY, message="it failed:\nlast \x1bline"))
    text = call(gateway, "explain", "1", at=True).output
    assert "out_of_memory: it failed:\n              last \ufffdline\n" in text


def test_explain_shows_how_often_a_request_was_sent(gateway: GatewayDirectory, record: Record) -> None:
    number = accept(record, b"a")
    digest = found(record, number).digest
    for state in ("request", "duplicate"):
        (message,) = record.add_messages([(Delivery("train", b"{}"), digest)], time.time())
        record.set_message(message, state, "", number)
    assert "sent 1 time more" in call(gateway, "explain", "1", at=True).output


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a:b@c/d?e=f#g", "https://c/d?…"),
        ("/uploads/x", "/uploads/x"),
        ("https://[bad/x?t=1", "(hidden)"),
    ],
)
def test_urls_are_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_a_hostile_id_and_note_do_not_reach_the_terminal_as_they_are(
    gateway: GatewayDirectory, record: Record
) -> None:
    accept(record, b"\x1b]0;x\x07", "a\x1bb")
    record.set_note(1, "\x1b[31mred")
    for command, arguments in (("requests", []), ("explain", ["1"])):
        assert "\x1b" not in call(gateway, command, *arguments, at=command == "explain").output


# cancel and drain


def test_cancel_records_that_open_requests_are_to_be_cancelled(
    gateway: GatewayDirectory, record: Record
) -> None:
    accept(record, b"a"), refuse(record, b"b")
    result = call(gateway, "cancel", "1", "2", at=True)
    assert "cancelling request 1 (a)" in result.output and "request 2 (b): already refused" in result.output
    assert "No gateway is running: `outlast gateway up" in result.output
    assert found(record, 1).cancel == "cancelled"
    assert audited(gateway) == ["cancel"]
    beat(gateway)
    assert "The running gateway" in call(gateway, "cancel", "1", at=True).output


def test_nothing_is_cancelled_if_one_of_the_names_is_wrong(gateway: GatewayDirectory, record: Record) -> None:
    accept(record, b"a")
    error_of(call(gateway, "cancel", "1", "none", at=True))
    assert found(record, 1).cancel == ""


def test_drain_is_recorded_and_taken_back(gateway: GatewayDirectory, record: Record) -> None:
    accept(record, b"a")
    result = call(gateway, "drain")
    assert "still to do: 1 request, 0 answers" in result.output
    assert record.about("drain") == "yes"
    assert not ask(gateway, "drain", "--off")["draining"]
    assert record.about("drain") == ""


def test_an_audit_log_that_cannot_be_written_stops_no_command(
    gateway: GatewayDirectory, record: Record
) -> None:
    gateway.audit.mkdir()
    accept(record, b"a")
    result = call(gateway, "cancel", "1", at=True)
    assert result.exit_code == 0 and "the audit log was not written" in result.stderr
    assert found(record, 1).cancel == "cancelled"


# replay


def test_replay_makes_a_confirmed_answer_due_again(gateway: GatewayDirectory, record: Record) -> None:
    number = accept(record, b"a")
    end(record, number, None)
    made = answer(record, number, "result")
    assert ask(gateway, "replay", "1", at=True)["answer"]["number"] == made
    assert record.due_answer_numbers(time.time() + 1, 5) == [made]
    assert state_of(record, number) == "answered"
    assert "is being sent" in error_of(call(gateway, "replay", "1", at=True))


def test_replay_explains_that_there_is_no_answer_yet_or_none_was_wanted(
    gateway: GatewayDirectory, record: Record
) -> None:
    accept(record, b"a")
    assert "accepted and has no answer yet" in error_of(call(gateway, "replay", "1", at=True))
    number = accept(record, b"b", reply_to="")
    end(record, number, None)
    assert "no reply_to" in error_of(call(gateway, "replay", "2", at=True))


# retry


def test_retry_of_an_undelivered_answer_sends_it_for_as_long_as_a_new_one(
    gateway: GatewayDirectory, record: Record
) -> None:
    refused, finished = refuse(record, b"a"), accept(record, b"b")
    end(record, finished, None)
    for number, state in ((refused, "refused"), (finished, "ended")):
        made = answer(record, number, state="dead")
        record.query("UPDATE outbox SET made=0 WHERE number=?", made)
        assert ask(gateway, "retry", str(number), at=True)["retried"] == "answer"
        assert state_of(record, number) == state
        again = record.answer(made)
        assert again is not None and again.state == "waiting" and time.time() - again.made < 60
        record.confirm(made, time.time())
        record.close_request(number, RequestState.ANSWERED, time.time())


def failed_run(gateway: GatewayDirectory, record: Record, failure: RequestFailure = OUT_OF_MEMORY) -> int:
    """Make a request that has failed and was answered, with its run in the journal of the experiment."""
    number = accept(record, b"a")
    end(record, number, failure)
    answer(record, number)
    experiment = Experiment(gateway.experiment("pages"))
    experiment.root.mkdir(parents=True)
    with_run(experiment, JournalEntry(2.0, "pages-000001", EntryKind.FAILED, None, {"reason": "why"}))
    return number


def with_run(experiment: Experiment, *entries: JournalEntry) -> None:
    journal = writer(experiment.journal)
    journal.add_spec(SPEC)
    journal.append([added("pages-000001"), *entries])
    journal.close()


def retries_in(gateway: GatewayDirectory) -> list[Any]:
    return [request for _, request in Inbox(Experiment(gateway.experiment("pages")).inbox).read()]


def test_retry_of_a_failed_request_runs_it_again_with_the_template_as_it_is_now(
    gateway: GatewayDirectory, record: Record
) -> None:
    number = failed_run(gateway, record)
    record.query("UPDATE requests SET body=? WHERE number=1", json.dumps(
        {"template": "pages", "inputs": {"book": {"url": "https://app.example.org/uploads/a"}}}
    ))  # fmt: skip
    params = gateway.template("pages") / "params.yaml"
    params.write_text(params.read_text().replace("memory: 1GB", "memory: 2GB"))
    result = call(gateway, "retry", "1", at=True)
    assert "retried from its checkpoints; its sender gets a second answer" in result.output, result.exception
    (retry,) = retries_in(gateway)
    assert isinstance(retry, Retry) and retry.runs == ("pages-000001",)
    assert retry.spec.resources.memory == 2 * 10**9
    assert (
        retry.spec.code_sha256
        and Experiment(gateway.experiment("pages")).code(retry.spec.code_sha256).exists()
    )
    request = found(record, number)
    assert (request.state, request.failure) == (RequestState.ACCEPTED, None)
    assert audited(gateway) == ["retry"]


def test_a_retried_request_gets_another_answer(gateway: GatewayDirectory, record: Record) -> None:
    number = failed_run(gateway, record)
    retry_request(gateway, record, found(record, number), time.time(), lambda *_: SPEC)
    record.start(number, time.time())
    record.end(number, time.time(), None)
    assert [one.number for one in record.without_answer(10)] == [number]
    assert record.choose_next("pages", 10) == [], "it would be submitted a second time"


def test_a_request_that_cannot_be_planned_any_more_is_not_reopened(
    gateway: GatewayDirectory, record: Record
) -> None:
    number = failed_run(gateway, record)
    record.query(
        "UPDATE requests SET body=? WHERE number=1", '{"template": "pages", "parameters": {"no": 1}}'
    )
    assert "would refuse request 1 now" in error_of(call(gateway, "retry", "1", at=True))
    assert state_of(record, number) == "answered" and retries_in(gateway) == []


def test_retry_sends_the_result_of_a_run_that_has_finished(gateway: GatewayDirectory, record: Record) -> None:
    number = accept(record, b"a")
    end(record, number, replace(OUT_OF_MEMORY, code=FailureCode.RESULT_UNDELIVERABLE))
    answer(record, number)
    experiment = Experiment(gateway.experiment("pages"))
    experiment.root.mkdir(parents=True)
    with_run(
        experiment,
        intended("pages-000001", "t"),
        ended("pages-000001", "t", "finished"),
        JournalEntry(4.0, "pages-000001", EntryKind.ACCEPTED, "t", {"reason": "its outputs are right"}),
        JournalEntry(5.0, "pages-000001", EntryKind.FINISHED, None, {}),
    )
    (gateway.template("pages") / "params.yaml").write_text("[")  # it is not needed for this
    assert ask(gateway, "retry", "1", at=True)["retried"] == "result"
    request = found(record, number)
    assert (request.state, request.failure) == (RequestState.ENDED, None)
    assert [one.number for one in record.without_answer(10)] == [number]


def test_retry_of_a_request_that_was_cancelled_before_it_was_submitted_submits_it(
    gateway: GatewayDirectory, record: Record
) -> None:
    number = accept(record, b"a")
    record.ask_cancel(number, "cancelled")
    record.end(number, time.time(), RequestFailure(FailureCode.CANCELLED, "it was cancelled"))
    answer(record, number)
    assert ask(gateway, "retry", "1", at=True)["retried"] == "run"
    assert [one.number for one in record.choose_next("pages", 10)] == [number]


def finish(record: Record) -> None:
    number = accept(record, b"a")
    end(record, number, None)
    answer(record, number, "result")


def expire(record: Record) -> None:
    body = TrainingRequest("pages")
    number = record.add_request(origin(b"a"), body, time.time(), deadline=5.0, run_of="pages").number
    record.end(number, time.time(), RequestFailure(FailureCode.EXPIRED, "too late"))
    answer(record, number)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda record: refuse(record, b"a"), "was refused"),
        (lambda record: accept(record, b"a"), "is accepted"),
        (lambda record: end(record, accept(record, b"a"), OUT_OF_MEMORY), "its answer is being sent"),
        (finish, "`outlast gateway replay 1`"),
        (expire, "the deadline of request 1 is over"),
    ],
    ids=["refused", "accepted", "ended", "result", "expired"],
)
def test_retry_explains_why_there_is_nothing_to_retry(
    gateway: GatewayDirectory, record: Record, prepare: Any, expected: str
) -> None:
    prepare(record)
    assert expected in error_of(call(gateway, "retry", "1", at=True))


# quarantine


def put_aside(record: Record, body: bytes, properties: Properties = Properties()) -> int:  # noqa: B008
    (number,) = record.add_messages([(Delivery("train", body, properties), "digest")], time.time())
    record.set_message(number, "quarantined", "its properties could not be decoded")
    return number


def test_quarantined_messages_are_listed_and_shown_escaped_and_cut(
    gateway: GatewayDirectory, record: Record
) -> None:
    number = put_aside(record, b'{"a":\n"\x1b[2J\xff"}' + b"x" * 9000, Properties(correlation_id=b"\x07id"))
    assert "its properties could not be decoded" in call(gateway, "quarantine").output
    text = call(gateway, "quarantine", "--show", str(number)).output
    assert '{"a":\n"\\x1b[2J\\xff"}' in text and "\\x07id" in text
    assert "\x1b" not in text and len(text) < 5000 and "not shown" in text
    assert ask(gateway, "quarantine", "--show", str(number))["properties"] == {"correlation_id": "\\x07id"}


def test_a_quarantined_message_is_interpreted_again_or_discarded(
    gateway: GatewayDirectory, record: Record
) -> None:
    first, second = put_aside(record, b"1"), put_aside(record, b"2")
    assert ask(gateway, "quarantine", "--release", str(first)) == {"released": [first]}
    assert [one.number for one in record.new_messages(5)] == [first]
    assert ask(gateway, "quarantine", "--discard", str(second)) == {"discarded": [second]}
    assert record.quarantined() == [] and audited(gateway) == ["released", "discarded"]
    assert "is not in quarantine (discarded)" in error_of(
        call(gateway, "quarantine", "--release", str(second))
    )
    assert "no message has the number 99" in error_of(call(gateway, "quarantine", "--show", "99"))


def test_without_the_client_library_the_message_names_the_command_to_install_it(
    gateway: GatewayDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'outlast\[gateway\]'"):
        gateway_common.require_client_library()
    assert "pip install" in error_of(call(gateway, "send", "--template", "pages"))
