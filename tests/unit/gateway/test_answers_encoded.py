"""Answers: complete, decodable by those who wait for them, and no larger in memory than they must be."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from outlast.gateway.message_formats.clean_values import to_json
from outlast.gateway.message_formats.encoding import (
    encode_failure,
    encode_progress,
    encode_status,
    rodan_sentences,
    routing_word,
)
from outlast.gateway.message_formats.failure_texts import TEXTS, failure
from outlast.gateway.message_formats.result_encoding import (
    ContentChanged,
    encode_result,
    encoded_size,
    too_large,
    write_result,
)
from outlast.gateway.requests import RETRYABLE, FailureCode, RequestState, ResultFile

DIALECTS = ("outlast", "cloudevents", "rodan")
CONTENTS = {
    "Background Model": b"\x00\xff" * 5,
    "Model 0": b"",
    "Model 1": b"abc",
    'odd "name" é': b"x" * 400_001,
}


def file_of(name: str, content: bytes, place: str = "") -> ResultFile:
    return ResultFile(name, Path("/results") / "x", len(content), hashlib.sha256(content).hexdigest(), place)


FILES = [file_of(name, content) for name, content in CONTENTS.items()]


class Dripping(io.BytesIO):
    """A file that returns less than what is asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(7001, size) if size and size > 0 else size)


@pytest.mark.parametrize("opened", [lambda content: content, io.BytesIO, Dripping])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_result_by_value_has_every_file(dialect: str, opened: Any) -> None:
    pairs = [(file, opened(CONTENTS[file.name])) for file in FILES]
    encoded = encode_result(dialect, b"7", pairs, {} if dialect == "rodan" else {"attempts": 3})
    answer = json.loads(encoded)
    if dialect == "rodan":
        found = {name: base64.decodebytes(text.encode()) for name, text in answer.items()}
    else:
        answer = answer["data"] if dialect == "cloudevents" else answer
        assert (answer["outlast"], answer["kind"], answer["id"], answer["attempts"]) == (1, "result", "7", 3)
        found = {file["name"]: base64.b64decode(file["content_base64"]) for file in answer["files"]}
    assert found == CONTENTS


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("number", range(5))
def test_the_size_of_a_result_is_known_before_it_is_encoded(dialect: str, number: int) -> None:
    files, facts = FILES[:number], {"metrics": {"f1": 0.5}}
    encoded = encode_result(dialect, b"\xff", [(file, CONTENTS[file.name]) for file in files], facts)
    assert encoded_size(dialect, b"\xff", files, facts) == len(encoded)
    assert isinstance(json.loads(encoded), dict)


@pytest.mark.parametrize("dialect", ["outlast", "cloudevents"])
def test_a_result_by_reference_names_the_place(dialect: str) -> None:
    near, far = file_of("a", b"abc"), file_of("b", b"x" * 10**6, "https://store.example.org/b")
    encoded = encode_result(dialect, b"7", [(near, b"abc"), (far, None)])
    assert encoded_size(dialect, b"7", [near, far]) == len(encoded) < 1000
    answer = json.loads(encoded)
    assert answer.get("data", answer)["files"][1] == {
        "name": "b",
        "size": 10**6,
        "sha256": far.sha256,
        "place": "https://store.example.org/b",
    }


def test_rodans_jobs_get_no_results_by_reference() -> None:
    with pytest.raises(ValueError, match="by reference"):
        encode_result("rodan", b"7", [(file_of("a", b"abc", "/shared/a"), None)])
    assert too_large(10**8, 10**7).code is FailureCode.RESULT_UNDELIVERABLE


@pytest.mark.parametrize("content", [b"abcd", b"ab", b"", b"abd"])
def test_a_file_that_has_changed_is_not_sent(content: bytes) -> None:
    with pytest.raises(ContentChanged):
        encode_result("outlast", b"7", [(file_of("a", b"abc"), content)])


@pytest.mark.parametrize("content", [b"abcd", b"ab"])
def test_a_file_without_a_digest_is_not_sent_with_another_size(content: bytes) -> None:
    file = ResultFile("a", Path("a"), 3, "")
    out = io.BytesIO()
    with pytest.raises(ContentChanged):
        write_result("outlast", out, b"7", [(file, content)])


def test_two_files_of_one_name_are_not_sent() -> None:
    with pytest.raises(ValueError, match="same name"):
        encode_result("rodan", b"7", [(file_of("a", b""), b""), (file_of("a", b""), b"")])


@pytest.mark.parametrize("name", ["outlast", "kind", "id", "files"])
def test_facts_cannot_take_the_place_of_what_answers_begin_with(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        encode_status("outlast", b"7", None, {name: "x"})


def peak_of(call: Any) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_writing_a_result_takes_no_memory_for_its_files(tmp_path: Path) -> None:
    content = tmp_path / "model"
    content.write_bytes(bytes(10**7))
    file = file_of("model", bytes(10**7))
    with content.open("rb", buffering=0) as source, (tmp_path / "answer").open("wb") as out:
        unbuffered: BinaryIO = source  # type: ignore[assignment]
        assert peak_of(lambda: write_result("outlast", out, b"7", [(file, unbuffered)])) < 2 * 10**6
    assert (tmp_path / "answer").stat().st_size == encoded_size("outlast", b"7", [file])


def test_encoding_a_result_takes_no_more_than_three_times_its_size() -> None:
    source = io.BytesIO(bytes(10**7))
    file = file_of("model", source.getvalue())
    peak = peak_of(lambda: encode_result("rodan", b"7", [(file, source)]))
    assert peak < 3 * encoded_size("rodan", b"7", [file])


@pytest.mark.parametrize("code", FailureCode)
def test_a_failure_has_its_code_advice_and_all_mistakes(code: FailureCode) -> None:
    why = failure(code, "It failed.", mistakes=("a: b", "c: d"), attempts=4)
    answer = json.loads(encode_failure("outlast", b"7", why))
    assert answer == {
        "outlast": 1,
        "kind": "failure",
        "id": "7",
        "code": code.value,
        "message": "It failed.",
        "advice": TEXTS[code].advice,
        "retryable": code in RETRYABLE,
        "mistakes": ["a: b", "c: d"],
        "attempts": 4,
    }
    [(key, text)] = json.loads(encode_failure("rodan", b"7", why)).items()
    assert key == "error"
    parts = ("It failed.", "a: b; c: d", TEXTS[code].advice, code.value, "4 times")
    assert all(part in text for part in parts)
    assert text.isprintable()


def test_what_rodan_shows_about_memory_is_put_right() -> None:
    frame = "The request to Cedar failed with response: %s\nTry adding more memory and run the job again."
    wrong = frame % rodan_sentences(failure(FailureCode.INPUT_REFUSED, "The image is no image."))
    assert "nor does more memory" in wrong
    right = frame % rodan_sentences(
        failure(FailureCode.OUT_OF_MEMORY, "It needs more than 8 GB.", attempts=3)
    )
    assert "Request more memory" in right
    assert "more memory does not" not in right
    assert "more memory does not" in rodan_sentences(failure(FailureCode.INTERNAL, "An error."))


def test_an_event_that_is_sent_twice_has_the_same_id_and_others_have_others() -> None:
    def event(encoded: bytes) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(encoded)
        assert value["specversion"] == "1.0"
        assert value["subject"] == "7"
        return value

    first = event(encode_progress("cloudevents", b"7", "step", {"step": 1}))
    again = event(encode_progress("cloudevents", b"7", "step", {"step": 1}))
    later = event(encode_progress("cloudevents", b"7", "step", {"step": 2}))
    failed = event(encode_failure("cloudevents", b"7", failure(FailureCode.EXPIRED, "Late.")))
    status = event(encode_status("cloudevents", b"7", RequestState.RUNNING))
    assert first == again
    ids = {value["id"] for value in (first, later, failed, status)}
    assert len(ids) == 4
    assert (failed["type"], status["type"]) == ("outlast.failure", "outlast.status")
    assert failed["data"]["code"] == "expired"


def test_a_request_that_nobody_sent_is_unknown() -> None:
    assert json.loads(encode_status("outlast", b"7", None))["state"] == "unknown"


@pytest.mark.parametrize("id_", [b"a.b", b"#", b"*", b"", b"a b", "é".encode(), b"\xff", b"x" * 101, b"a\n"])
def test_an_id_with_a_meaning_in_topics_becomes_one_plain_word(id_: bytes) -> None:
    assert routing_word(b"0b9c-7_A") == "0b9c-7_A"
    word = routing_word(id_)
    assert word.startswith("digest-")
    assert len(word) == 39


def test_values_that_json_has_no_word_for_are_made_fit() -> None:
    looped: dict[str, Any] = {}
    looped["again"] = looped
    values = [float("nan"), float("-inf"), 10**30, "\ud800", Path("x"), (1, True), {1: None}, 10**5000]
    encoded = to_json([*values, looped])
    fit = json.loads(encoded)
    assert fit[:8] == [None, None, None, "?", "x", [1, True], {"1": None}, None]
    assert b"NaN" not in encoded
