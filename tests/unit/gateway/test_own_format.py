"""Requests of our own format: exact types, all mistakes at once, and what a request means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlast.gateway.message_formats import mistake_list
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requests import (
    CancelRequest,
    Delivery,
    FailureCode,
    InputReference,
    Properties,
    RequestFailure,
    RequestRefused,
    StatusRequest,
    TrainingRequest,
)
from outlast.gateway.settings import QueueSettings

NOW = 1_795_000_000.0
QUEUE = QueueSettings("requests", reply_to=("replies",))


def read(value: Any, **properties: Any) -> Any:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_message(Delivery("requests", body, Properties(**properties)), QUEUE, NOW)


def refusal(value: Any) -> RequestFailure:
    with pytest.raises(RequestRefused) as caught:
        read(value)
    return caught.value.failure


def train(**more: Any) -> dict[str, Any]:
    return {"outlast": 1, "kind": "train", "template": "pages", **more}


def test_a_request_keeps_all_that_it_says() -> None:
    request = train(
        parameters={"epochs": 2, "rate": 0.5, "title": "Liber", "small": True},
        inputs={"a": "https://x/a", "b": {"url": "/b", "sha256": "AB" * 32, "size": 0}},
        resources={"cpus": 2, "gpus": 1, "memory": "16GB", "disk": "1GiB", "time": "1h30m"},
        deadline="2026-11-19T13:00:00+01:00",
        uploads={"model": "https://y/m"},
    )
    assert read(request) == TrainingRequest(
        "pages",
        {"epochs": 2, "rate": 0.5, "title": "Liber", "small": True},
        {"a": InputReference("https://x/a"), "b": InputReference("/b", "ab" * 32, 0)},
        {"cpus": 2, "gpus": 1, "memory": 16 * 10**9, "disk": 2**30, "time": 5400.0},
        1795089600.0,
        {"model": "https://y/m"},
    )


def test_a_template_alone_is_a_request() -> None:
    assert read(train()) == TrainingRequest("pages")


def test_types_of_parameters_stay_exact() -> None:
    parameters = read(train(parameters={"a": True, "b": 1, "c": 1.0, "d": "1"})).parameters
    assert {name: type(value) for name, value in parameters.items()} == {
        "a": bool,
        "b": int,
        "c": float,
        "d": str,
    }


def test_cancel_and_status_name_a_request_by_text_or_bytes() -> None:
    assert read({"outlast": 1, "kind": "cancel", "id": "é"}) == CancelRequest("é".encode())
    assert read({"outlast": 1, "kind": "status", "id_base64": "/wA="}) == StatusRequest(b"\xff\x00")


def test_all_mistakes_are_listed_at_once_with_their_paths() -> None:
    body = json.dumps(
        {
            "outlast": 1,
            "kind": "train",
            "parameters": {"epochs": None, "title": "\x1b", "rate": "@"},
            "inputs": {"Layer 0": 5, "b": {"url": "", "size": True, "mode": 1}},
            "resources": {"cpus": True, "memory": "16", "partition": "gpu"},
            "deadline": "soon",
            "env": {},
            "colour": 1,
        }
    ).replace('"@"', "1e999")
    failure = refusal(body.encode())
    assert failure.code is FailureCode.INVALID_REQUEST
    assert [mistake.partition(": ")[0] for mistake in failure.mistakes] == [
        "parameters.title",
        "parameters.rate",
        "template",
        "parameters.epochs",
        'inputs["Layer 0"]',
        "inputs.b.url",
        "inputs.b.size",
        "inputs.b.mode",
        "resources.cpus",
        "resources.memory",
        "resources.partition",
        "deadline",
        "env",
        "colour",
    ]
    assert failure.message == "The request has 14 mistakes."


def test_a_mistake_shows_no_value_of_a_parameter() -> None:
    secret = "hunter2"
    failure = refusal(train(parameters={"a": [secret], "b": secret + "\n", "c": {secret: 1}}))
    assert len(failure.mistakes) == 3
    assert secret not in " ".join(failure.mistakes)


def test_thousands_of_mistakes_make_a_short_failure() -> None:
    failure = refusal(train(parameters={f"{n}" + "x" * 90: None for n in range(900)}))
    assert len(failure.mistakes) == mistake_list.MOST + 1
    assert failure.mistakes[-1] == f"and {900 - mistake_list.MOST} more mistakes"
    assert all(len(mistake) <= 300 for mistake in failure.mistakes)


def test_an_impossible_template_beside_another_mistake_is_an_invalid_request() -> None:
    assert refusal(train(template="../x")).code is FailureCode.UNKNOWN_TEMPLATE
    assert refusal(train(template="../x", colour=1)).code is FailureCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("1970-01-01t00:00:00.25z", 0.25),
        ("0001-01-01T00:00:00+23:59", -62135683140.0),
        ("9999-12-31T23:59:59-23:59", 253402387139.0),
    ],
)
def test_a_deadline_at_the_edge_of_the_calendar_is_understood(written: str, seconds: float) -> None:
    if seconds <= NOW:
        assert refusal(train(deadline=written)).code is FailureCode.EXPIRED
    else:
        assert read(train(deadline=written)).deadline == seconds


@pytest.mark.parametrize(
    "written",
    ["2026-13-01T00:00:00Z", "2026-11-19T24:00:00Z", "2026-11-19T12:00:60Z", "0000-01-01T00:00:00Z"],
)
def test_a_deadline_that_no_calendar_has_is_a_mistake(written: str) -> None:
    assert refusal(train(deadline=written)).mistakes[0].startswith("deadline: ")


def test_the_deadline_is_the_earlier_one_of_request_and_message() -> None:
    later = train(deadline="2100-01-01T00:00:00Z")
    assert read(later, expiration=b"60000").deadline == NOW + 60
    assert read(train(), expiration=b"60000", timestamp=int(NOW) - 50).deadline == NOW + 10
    assert read(train(), expiration=b"60000", timestamp=int(NOW) + 50).deadline == NOW + 60
    assert read(train(), expiration=b"soon").deadline is None
    assert read(later, expiration=b"9" * 15).deadline == 4102444800.0
    with pytest.raises(RequestRefused) as caught:
        read(train(), expiration=b"60000", timestamp=int(NOW) - 60)
    assert caught.value.failure.code is FailureCode.EXPIRED
