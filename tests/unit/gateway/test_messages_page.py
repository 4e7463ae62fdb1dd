"""The reference of messages shows what the code reads and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outlast.gateway.message_formats import rodan, schemas
from outlast.gateway.message_formats.encoding import PROGRESS, UNKNOWN, encode_failure, rodan_sentences
from outlast.gateway.message_formats.failure_texts import TEXTS, failure
from outlast.gateway.message_formats.own import KINDS
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requests import (
    RETRYABLE,
    Delivery,
    FailureCode,
    Properties,
    RequestRefused,
    RequestState,
)
from outlast.gateway.settings import QueueSettings
from support.json_schema import schema_errors

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/messages.md").read_text(encoding="utf-8")
BLOCKS = [json.loads(text) for text in re.findall(r"(?ms)^```json\n(.*?)^```$", PAGE)]
REQUEST = schemas.read_schema(schemas.REQUEST)
ANSWER = schemas.read_schema(schemas.ANSWER)


def is_request(block: dict[str, Any]) -> bool:
    body = block.get("data", block)
    return "settings" in body or (body.get("kind") in KINDS and "state" not in body)


def read(block: dict[str, Any]) -> object:
    is_rodan = "settings" in block
    queue = QueueSettings("requests", "rodan" if is_rodan else "outlast", "pages")
    kind = b"application/cloudevents+json" if "specversion" in block else b"application/json"
    properties = Properties(correlation_id=b"7", content_type=kind)
    return read_message(Delivery("requests", json.dumps(block).encode(), properties), queue, 0.0)


@pytest.mark.parametrize("block", [block for block in BLOCKS if is_request(block)])
def test_every_request_that_is_shown_is_served(block: dict[str, Any]) -> None:
    assert read(block)
    if "settings" not in block:
        assert schema_errors(block.get("data", block), REQUEST) == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if not is_request(block)])
def test_every_answer_that_is_shown_is_one_that_is_sent(block: dict[str, Any]) -> None:
    body = block.get("data", block)
    if "outlast" in body:
        assert schema_errors(body, ANSWER) == []
    else:
        assert all(isinstance(value, str) for value in block.values())
    if body.get("kind") == "failure":
        code = FailureCode(body["code"])
        why = failure(code, body["message"], mistakes=tuple(body["mistakes"]))
        dialect = "cloudevents" if "data" in block else "outlast"
        assert json.loads(encode_failure(dialect, body["id"].encode(), why)) == block


def test_the_page_shows_requests_and_answers_of_all_kinds() -> None:
    kinds = {block.get("data", block).get("kind") for block in BLOCKS}
    assert kinds == {*KINDS, "result", "failure", "progress", None}
    assert len(BLOCKS) == 12


def test_the_mistakes_that_are_shown_are_written_so() -> None:
    shown = next(block for block in BLOCKS if block.get("code") == "invalid_request")
    body = b'{"outlast": 1, "kind": "train", "template": "a", "parameters": {"epochs": NaN}, "command": "id"}'
    with pytest.raises(RequestRefused) as caught:
        read_message(Delivery("requests", body), QueueSettings("requests"), 0.0)
    found = caught.value.failure
    assert (found.message, list(found.mistakes)) == (shown["message"], shown["mistakes"])


def test_the_text_for_rodan_that_is_shown_is_written_so() -> None:
    [shown] = [block["error"] for block in BLOCKS if "error" in block]
    message = "The training needs more than 16 GB of memory."
    assert shown == rodan_sentences(failure(FailureCode.OUT_OF_MEMORY, message, attempts=3))


@pytest.mark.parametrize("code", FailureCode)
def test_every_code_is_explained(code: FailureCode) -> None:
    text = TEXTS[code]
    retryable = "yes" if code in RETRYABLE else "no"
    assert f"\n| `{code.value}` | {text.meaning} | {retryable} | {text.advice} |\n" in PAGE


def test_every_state_and_key_is_explained() -> None:
    named = set(re.findall(r"`([^`\n]+)`", PAGE))
    assert {*PROGRESS, UNKNOWN, *(state.value for state in RequestState)} <= named
    keys = REQUEST["$defs"]["train"]["properties"]
    assert {key for key in keys if key != "resources"} <= named
    assert {f"resources.{key}" for key in keys["resources"]["properties"]} <= named
    assert {*rodan.PARAMETERS, *rodan.RESOURCES, *rodan.COMMON_INPUTS, *rodan.OLD_LAYERS} <= named
    assert {rodan.TIME, rodan.EMAIL} <= named
