"""What a message's properties decide before its body is read: where the answer goes, who sent it, its id."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from outlast.gateway.message_formats.dialects import content_type_of, dialect_of
from outlast.gateway.message_formats.message_identity import message_digest, request_id
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    Properties,
    Quarantined,
    RequestRefused,
    TrainingRequest,
)
from outlast.gateway.settings import QueueSettings

BODY = b'{"outlast": 1, "kind": "train", "template": "pages"}'
QUEUE = QueueSettings("requests", reply_to=("replies", "app.*"), dead_letters="dead")


def delivery(body: bytes = BODY, **properties: Any) -> Delivery:
    return Delivery("requests", body, Properties(**properties))


def is_quarantined(reply_to: bytes, queue: QueueSettings = QUEUE) -> bool:
    results = set()
    for body in (BODY, b""):
        # A message that is refused is answered, too: the same rules hold.
        try:
            read_message(delivery(body, reply_to=reply_to), queue, 0.0)
            results.add(False)
        except RequestRefused:
            results.add(False)
        except Quarantined:
            results.add(True)
    [result] = results
    return result


def test_answers_go_to_the_queues_of_the_list_and_to_no_others() -> None:
    assert not any(map(is_quarantined, (b"replies", b"app.", b"app.lab-7", b"app.*", b"")))
    others = (b"Replies", b"replies2", b"replies ", b"app", b"xapp.", b"*", b"requests", b"dead", b"app.\xff")
    assert all(map(is_quarantined, others))


def test_no_list_leads_answers_into_the_requests_or_to_the_broker() -> None:
    everything = dataclasses.replace(QUEUE, reply_to=("*", "requests", "dead", "amq.gen-1"))
    assert not is_quarantined(b"anything", everything)
    names = (b"requests", b"dead", b"amq.gen-1", b"amq.rabbitmq.reply-to", b"x" * 201, b"a\tb", b"a\x00")
    assert all(is_quarantined(name, everything) for name in names)


def test_without_a_list_no_answer_goes_anywhere() -> None:
    assert is_quarantined(b"replies", QueueSettings("requests"))
    assert not is_quarantined(b"", QueueSettings("requests"))


def test_a_message_that_could_not_be_decoded_is_put_aside_though_its_body_is_good() -> None:
    with pytest.raises(Quarantined):
        read_message(delivery(damaged=True), QUEUE, 0.0)


def test_only_the_users_of_a_queue_are_served() -> None:
    queue = dataclasses.replace(QUEUE, users=("app", "réne"))
    for user in (b"app", "réne".encode()):
        assert isinstance(read_message(delivery(user_id=user), queue, 0.0), TrainingRequest)
    for user in (None, b"", b"App", b"app ", b"\xff"):
        with pytest.raises(RequestRefused) as caught:
            read_message(delivery(user_id=user), queue, 0.0)
        assert caught.value.failure.code is FailureCode.FORBIDDEN


def test_a_stranger_learns_nothing_about_the_body() -> None:
    queue = dataclasses.replace(QUEUE, users=("app",))
    with pytest.raises(RequestRefused) as caught:
        read_message(delivery(b"[", user_id=b"x"), queue, 0.0)
    assert caught.value.failure.mistakes == ()


def test_the_id_is_the_message_id_else_the_correlation_id_else_a_digest() -> None:
    assert request_id(delivery(message_id=b"m", correlation_id=b"c")) == b"m"
    assert request_id(delivery(message_id=b"", correlation_id=b"\xff c")) == b"\xff c"
    assert request_id(delivery(message_id=b"m", correlation_id=b"c"), "rodan") == b"c"
    digest = request_id(delivery())
    assert digest == b"digest-" + message_digest(delivery()).encode()
    assert request_id(delivery(BODY + b" ")) != digest


def test_a_message_that_is_sent_again_has_the_same_digest() -> None:
    first = message_digest(delivery(correlation_id=b"c", reply_to=b"replies", timestamp=1))
    again: dict[str, Any] = {
        "timestamp": 2,
        "priority": 3,
        "expiration": b"9",
        "app_id": b"x",
        "death": "expired",
    }
    assert message_digest(delivery(correlation_id=b"c", reply_to=b"replies", **again)) == first
    redelivered = Delivery("dead", BODY, Properties(correlation_id=b"c", reply_to=b"replies"), True, 7)
    assert message_digest(redelivered) == first


@pytest.mark.parametrize(
    "name", ["correlation_id", "reply_to", "user_id", "content_type", "content_encoding"]
)
def test_a_message_with_another_meaning_has_another_digest(name: str) -> None:
    values = (None, b"", b"a", b"a1:b")
    assert len({message_digest(delivery(**{name: value})) for value in values}) == len(values)


def test_bytes_that_move_from_one_property_to_the_next_change_the_digest() -> None:
    left = delivery(b"c", reply_to=b"ab", correlation_id=b"")
    assert message_digest(left) != message_digest(delivery(b"c", reply_to=b"a", correlation_id=b"b"))
    assert message_digest(left) != message_digest(delivery(b"", reply_to=b"ab", correlation_id=b"c"))


def test_an_answer_has_the_format_of_its_request() -> None:
    event = delivery(content_type=b"Application/CloudEvents+JSON; charset=utf-8")
    rodan = QueueSettings("hpc-jobs", "rodan", "pages")
    assert dialect_of(event, QUEUE) == "cloudevents"
    assert dialect_of(event, rodan) == "rodan"
    assert dialect_of(delivery(), QUEUE) == "outlast"
    assert content_type_of("cloudevents") == "application/cloudevents+json"
    assert content_type_of("rodan") == content_type_of("outlast") == "application/json"
