"""The packaged JSON Schemas say the same as the code."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.gateway.message_formats import schemas
from outlast.gateway.message_formats.encoding import (
    PROGRESS,
    UNKNOWN,
    encode_failure,
    encode_progress,
    encode_status,
)
from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.message_formats.result_encoding import encode_result
from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    Quarantined,
    RequestRefused,
    RequestState,
    ResultFile,
)
from outlast.gateway.settings import QueueSettings
from support.hostile_messages import SERVED, Site, hostile_messages
from support.json_schema import schema_errors

REQUEST = schemas.read_schema(schemas.REQUEST)
ANSWER = schemas.read_schema(schemas.ANSWER)
FULL: dict[str, Any] = {
    "outlast": 1,
    "kind": "train",
    "template": "pages",
    "parameters": {"epochs": 2, "rate": 1e-3, "title": "Liber", "small": True},
    "inputs": {
        "pages": "https://app.example.org/book.zip",
        "marks": {"url": "https://app.example.org/m", "sha256": "0a" * 32, "size": 7},
    },
    "resources": {"cpus": 2, "gpus": 0, "memory": "16GB", "disk": "1.5 GiB", "time": "2h"},
    "deadline": "2026-11-19T12:00:00.5+01:00",
    "uploads": {"model": "https://store.example.org/put?signature=x"},
}
CANCEL = {"outlast": 1, "kind": "cancel", "id": "a"}
STATUS = {"outlast": 1, "kind": "status", "id_base64": "/w=="}


def is_served(value: object) -> bool:
    queue = QueueSettings("requests", reply_to=("replies",))
    try:
        read_message(Delivery("requests", json.dumps(value).encode()), queue, 0.0)
    except (RequestRefused, Quarantined):
        return False
    return True


@pytest.mark.parametrize("request_", [FULL, CANCEL, STATUS], ids=["train", "cancel", "status"])
def test_good_requests_are_valid_and_served(request_: Mapping[str, Any]) -> None:
    assert schema_errors(request_, REQUEST) == []
    assert is_served(request_)


def changed(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """Return the full request with another value at a path, or without it, if the value is Ellipsis."""
    request = copy.deepcopy(FULL)
    holder = request
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return request


WRONG: list[tuple[tuple[str, ...], object]] = [
    *((("outlast",), value) for value in (..., 2, True, "1", None)),
    *((("kind",), value) for value in (..., "run", 1)),
    *((("template",), value) for value in (..., "", "../x", "/x", "a b", "x" * 101, 5)),
    *((("parameters",), value) for value in ([], None, {"": 1}, {"x" * 101: 1}, {"a": None}, {"a": [1]})),
    *((("parameters",), value) for value in ({"a": {}}, {str(n): n for n in range(1001)})),
    *((("inputs",), value) for value in ([], {"a": ""}, {"a": 1}, {"a": {}}, {"a": {"url": 1}})),
    *((("inputs", "marks", "url"), value) for value in (..., "", "x" * 8001)),
    *((("inputs", "marks", "sha256"), value) for value in ("", "0" * 63, "g" * 64, 1)),
    *((("inputs", "marks", "size"), value) for value in (-1, 1.5, "1", True, 10**18 + 1)),
    (("inputs", "marks", "path"), "/x"),
    *((("resources", "cpus"), value) for value in (0, -1, 1.5, "1", True, 10**6 + 1)),
    *((("resources", "gpus"), value) for value in (-1, True)),
    *((("resources", "memory"), value) for value in (16, "16", "", "-1GB", "GB", "x" * 41)),
    *((("resources", "time"), value) for value in (2, "", "h", "1" + "h" * 40)),
    (("resources", "account"), "lab"),
    *((("deadline",), value) for value in (1, "", "2026-11-19", "2026-11-19T12:00:00", "20261119T120000Z")),
    *((("uploads",), value) for value in ([], {"a": ""}, {"a": 1})),
    *((("command",), value) for value in ("x", None)),
    (("id",), "x"),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda part: repr(part)[:60])
def test_what_the_schema_refuses_is_refused(path: tuple[str, ...], value: object) -> None:
    request = changed(path, value)
    assert schema_errors(request, REQUEST) != []
    assert not is_served(request)


def test_every_hostile_message_that_is_served_is_valid() -> None:
    for message in hostile_messages(Site()):
        if message.read_as == SERVED and message.dialect == "outlast":
            value = json.loads(message.body.decode("utf-8-sig"))
            assert schema_errors(value.get("data", value), REQUEST) == [], message.name


@pytest.mark.parametrize("id_", [b"plain", b"\xff"])
def test_every_answer_is_valid(id_: bytes) -> None:
    files = [
        (
            ResultFile(
                "model", Path("m"), 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
            ),
            b"abc",
        ),
        (ResultFile("log", Path("l"), 5, "0" * 64, "https://store.example.org/log"), None),
    ]
    answers = [
        encode_result("outlast", id_, files, {"metrics": {"f1": float("nan")}, "attempts": 2}),
        *(
            encode_failure("outlast", id_, failure(code, "It failed.", mistakes=("a: b",)))
            for code in FailureCode
        ),
        *(encode_progress("outlast", id_, state, {"step": 4}) for state in PROGRESS),
        *(encode_status("outlast", id_, state) for state in (None, *RequestState)),
    ]
    for answer in answers:
        assert schema_errors(json.loads(answer), ANSWER) == []


def test_the_schema_of_answers_has_every_code_and_state() -> None:
    kinds = ANSWER["$defs"]
    assert kinds["failure"]["properties"]["code"]["enum"] == [code.value for code in FailureCode]
    assert kinds["progress"]["properties"]["state"]["enum"] == list(PROGRESS)
    states = [UNKNOWN, *(state.value for state in RequestState)]
    assert kinds["status"]["properties"]["state"]["enum"] == states


def test_an_id_that_is_no_text_is_named_in_base64() -> None:
    answer = json.loads(encode_status("outlast", b"\xff\x00", None))
    assert base64.b64decode(answer["id_base64"]) == b"\xff\x00"
