"""The client: one request, one answer, whatever happens to the connection; files that are what they say."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import BadInput
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requester import requester
from outlast.gateway.requester.client_answer import (
    Answer,
    BadAnswer,
    prepare_directory,
    read_answer,
    write_files,
)
from outlast.gateway.requester.client_request import (
    ClientRequest,
    choose_queue,
    choose_reply_queue,
    control_body,
    parse_value,
    split_pairs,
    training_body,
)
from outlast.gateway.requester.requester import CannotSend, LinkLost, LinkRefused, Received, Requester
from outlast.gateway.requests import (
    CancelRequest,
    Delivery,
    OutgoingMessage,
    Properties,
    PublishOutcome,
    PublishResult,
    StatusRequest,
    TrainingRequest,
)
from outlast.gateway.settings import Parameter, QueueSettings

REQUEST = ClientRequest(b"id-1", b"{}", "train", "results.id-1")
QUEUE = QueueSettings("train", reply_to=("results", "results.*"))
ANSWER = {"outlast": 1, "kind": "status", "id": "id-1", "state": "running"}


class Link:
    """A link that does what the test lists; an exception in a list is raised."""

    def __init__(self, *outcomes: Any, received: Any = ()) -> None:
        self.outcomes = list(outcomes)
        self.to_receive = list(received)
        self.published: list[OutgoingMessage] = []
        self.opened = self.closed = self.acknowledged = 0

    def open(self, request: ClientRequest, timeout: float) -> None:
        self.opened += 1

    def publish(self, publication: OutgoingMessage, timeout: float) -> PublishOutcome:
        self.published.append(publication)
        outcome = self.outcomes.pop(0) if self.outcomes else PublishResult.CONFIRMED
        if isinstance(outcome, Exception):
            raise outcome
        return PublishOutcome(1, outcome, "why")

    def receive(self, timeout: float) -> Received | None:
        found = self.to_receive.pop(0) if self.to_receive else None
        if isinstance(found, Exception):
            raise found
        return found

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requester.time, "sleep", lambda seconds: None)


def reply(id: bytes = b"id-1", **keys: Any) -> Received:
    return Received(id, json.dumps({**ANSWER, **keys}).encode())


def client_of(link: Link, **calls: Callable[[Any], None]) -> Requester:
    return Requester(link, REQUEST, user="ann", **calls)


# Sending


def test_a_request_is_persistent_mandatory_and_carries_id_user_and_reply_queue() -> None:
    link = Link()
    client_of(link).send()
    (sent,) = link.published
    assert (sent.routing_key, sent.exchange, sent.persistent, sent.mandatory) == ("train", "", True, True)
    assert (sent.message_id, sent.correlation_id) == ("id-1", b"id-1")
    assert (sent.reply_to, sent.user_id) == ("results.id-1", "ann")


def test_a_request_is_sent_again_until_the_broker_has_it() -> None:
    link, troubles = Link(LinkLost("gone"), PublishResult.NACKED, PublishResult.UNKNOWN), list[str]()
    client_of(link, on_trouble=troubles.append).send()
    assert len({sent.body for sent in link.published}) == 1 and len(link.published) == 4
    assert len(troubles) == 3 and link.opened == 4


@pytest.mark.parametrize("result", [PublishResult.RETURNED, PublishResult.TOO_LARGE, PublishResult.REFUSED])
def test_what_no_other_try_can_change_is_an_error_at_once(result: PublishResult) -> None:
    link = Link(result)
    with pytest.raises(CannotSend, match="why"):
        client_of(link).send()
    assert len(link.published) == 1


def test_sending_ends_in_time() -> None:
    link = Link(*[LinkLost("gone")] * 1000)
    with pytest.raises(CannotSend, match="gone"):
        client_of(link).send(timeout=0.0)
    assert len(link.published) == 1


# Waiting


def test_the_answer_is_the_one_with_the_id_of_the_request() -> None:
    link = Link(received=[reply(b"other"), reply(state="ended")])
    found = client_of(link).wait(60)
    assert found is not None and found.text("state") == "ended" and link.acknowledged == 1


def test_a_lost_connection_is_made_again_and_the_same_request_asks_for_its_answer() -> None:
    link = Link(received=[LinkLost("restart"), reply()])
    one = client_of(link)
    one.send()
    assert one.wait(60) is not None
    first, second = link.published
    assert first == second


def test_waiting_ends_in_time_and_if_the_broker_refuses_to_go_on() -> None:
    assert client_of(Link()).wait(60) is None
    assert client_of(Link(received=[reply()])).wait(0) is None
    with pytest.raises(CannotSend, match="the request goes on"):
        client_of(Link(received=[LinkRefused("no rights")])).wait(60)


def test_progress_is_shown_and_no_answer() -> None:
    shown: list[Answer] = []
    progress = [
        Received(b"id-1", body, is_progress=True)
        for body in (b"not json", b'{"outlast": 1, "kind": "progress", "state": "started"}')
    ]
    link = Link(received=[*progress, reply()])
    assert client_of(link, on_progress=shown.append).wait(60) is not None
    assert [one.text("state") for one in shown] == ["started"]


def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(CannotSend, match="cannot be used"):
        client_of(Link(received=[Received(b"id-1", b"{")])).wait(60)


# What is sent


def test_the_bodies_are_read_by_the_gateway_as_they_were_meant() -> None:
    body = training_body(
        "pages",
        parameters={"epochs": 3, "fast": True},
        inputs={"book": "https://app.example.org/a"},
        resources={"cpus": 2, "memory": "8GB"},
        deadline="2126-11-19T12:00:00Z",
    )

    def read(body: bytes) -> object:
        return read_message(Delivery("train", body, Properties(message_id=b"x")), QUEUE, 0.0)

    found = read(body)
    assert isinstance(found, TrainingRequest)
    assert (found.template, found.parameters) == ("pages", {"epochs": 3, "fast": True})
    assert found.inputs["book"].url == "https://app.example.org/a"
    assert found.resources == {"cpus": 2, "memory": 8 * 10**9} and found.deadline is not None
    assert read(control_body("cancel", b"ab")) == CancelRequest(b"ab")
    assert read(control_body("status", b"\xff")) == StatusRequest(b"\xff")


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        *(("integer", "3", 3), ("number", "3", 3), ("number", "1e-3", 0.001), ("text", "3", "3")),
        *(("choice", "true", "true"), ("yes-no", "yes", True), ("yes-no", "false", False)),
        *(("", "3", 3), ("", "1e-3", 0.001), ("", "true", True), ("", '"3"', "3"), ("", "a b", "a b")),
        *(("", "null", "null"), ("", "[1]", "[1]")),
    ],
)
def test_values_get_the_type_of_the_template_or_the_one_they_look_like(
    type: str, text: str, value: object
) -> None:
    found = parse_value("x", text, Parameter(type) if type else None)
    assert found == value and isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize(("type", "text"), [("integer", "3.0"), ("number", "x"), ("yes-no", "1")])
def test_a_value_of_another_type_is_refused_before_it_is_sent(type: str, text: str) -> None:
    with pytest.raises(BadInput, match="--parameter x"):
        parse_value("x", text, Parameter(type))


def test_pairs_need_a_name_and_are_given_once() -> None:
    assert split_pairs("--input", ["a=https://x/?a=b"]) == {"a": "https://x/?a=b"}
    for texts in (["a"], ["=b"], ["a=1", "a=2"]):
        with pytest.raises(BadInput):
            split_pairs("--input", texts)


def test_the_reply_queue_is_one_to_which_the_gateway_may_send() -> None:
    assert choose_reply_queue(QUEUE, "", b"id-1") == ("results.outlast-id-1", True)
    plain = QueueSettings("train", reply_to=("results*",))
    assert choose_reply_queue(plain, "", b"id-1") == ("results.outlast-id-1", True)
    assert choose_reply_queue(QUEUE, "results", b"x") == ("results", False)
    for name, queue in (("other", QUEUE), ("", QueueSettings("train", reply_to=("results",)))):
        with pytest.raises(BadInput, match="reply_to"):
            choose_reply_queue(queue, name, b"x")


def test_the_queue_is_one_of_our_own_format() -> None:
    rodan = QueueSettings("hpc-jobs", dialect="rodan")
    assert choose_queue([rodan, QUEUE], "") == QUEUE
    assert choose_queue([QUEUE, QueueSettings("b")], "b").name == "b"
    for queues, name in (
        ([QUEUE, QueueSettings("b")], ""),
        ([rodan], ""),
        ([rodan, QUEUE], "hpc-jobs"),
        ([QUEUE], "x"),
    ):
        with pytest.raises(BadInput, match="queue"):
            choose_queue(queues, name)


# What comes back


def a_file(name: str, content: bytes = b"model", **changes: object) -> dict[str, object]:
    return {
        "name": name,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "content_base64": base64.b64encode(content).decode(),
        **changes,
    }


def result(*files: dict[str, object]) -> Answer:
    return read_answer(json.dumps({**ANSWER, "kind": "result", "files": files}).encode())


def test_the_files_of_a_result_are_written_below_the_directory(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    prepare_directory(out)
    written, elsewhere = write_files(result(a_file("Model 0"), a_file("a/b.txt", b"")), out)
    assert (written, elsewhere) == (["Model 0", "a/b.txt"], [])
    assert (out / "Model 0").read_bytes() == b"model" and (out / "a/b.txt").read_bytes() == b""


@pytest.mark.parametrize(
    "changes",
    [{"size": 4}, {"sha256": "0" * 64}, {"content_base64": "x"}, {"content_base64": 5}, {"size": "x"}],
)
def test_a_file_that_is_not_what_the_answer_says_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadAnswer):
        result(a_file("m", **changes))


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".", "a\nb", "x" * 2000])
def test_no_file_is_written_if_one_has_an_unsafe_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadAnswer, match="safe name"):
        write_files(result(a_file("good"), a_file(name)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_link_below_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    out = tmp_path / "out"
    out.mkdir()
    (out / "m").symlink_to(tmp_path / "victim")
    write_files(result(a_file("m")), out)
    assert (tmp_path / "victim").read_text() == "kept" and (out / "m").read_bytes() == b"model"


def test_a_directory_with_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(BadInput, match="not empty"):
        prepare_directory(tmp_path)


def test_a_file_by_reference_is_copied_if_it_is_here_and_checked(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.write_bytes(b"model")

    def by_reference(place: str, **changes: object) -> Answer:
        file = a_file("m", place=place, **changes)
        del file["content_base64"]
        return result(file)

    out = tmp_path / "out"
    assert write_files(by_reference(str(source)), out) == (["m"], [])
    _, elsewhere = write_files(by_reference("https://store.example.org/m"), tmp_path / "b")
    assert [one.place for one in elsewhere] == ["https://store.example.org/m"]
    with pytest.raises(BadAnswer, match="sha256"):
        write_files(by_reference(str(source), sha256="0" * 64), tmp_path / "c")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"outlast": 2, "kind": "x"}',
        b'{"outlast": 1}',
        b'{"outlast": 1, "kind": "result", "files": [1]}',
    ],
)
def test_another_format_is_refused(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_answer(body)
