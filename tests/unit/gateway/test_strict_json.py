"""JSON that could be misunderstood is refused, with the path of what is wrong."""

from __future__ import annotations

import json

import pytest

from outlast.gateway.message_formats.mistake_list import MistakeList
from outlast.gateway.message_formats.strict_json import DEEPEST, LARGEST_BODY, UNUSABLE, parse


def mistakes_in(body: bytes) -> list[str]:
    mistakes = MistakeList()
    parse(body, mistakes)
    return mistakes.texts


def test_what_is_right_is_read_beside_what_is_wrong() -> None:
    mistakes = MistakeList()
    value = parse(rb'{"a": [1, NaN, {"b": "\u0000"}], "c": 1, "c": 2, "d": "x"}', mistakes)
    assert value == {"a": [1, UNUSABLE, {"b": UNUSABLE}], "c": UNUSABLE, "d": "x"}
    assert [text.partition(": ")[0] for text in mistakes.texts] == ["a[1]", "a[2].b", "c"]


def test_a_body_of_the_largest_size_is_read_and_one_byte_more_is_not() -> None:
    body = b'"' + b"x" * (LARGEST_BODY - 2) + b'"'
    assert mistakes_in(body) == []
    assert mistakes_in(body + b" ") == ["body: it has 262,145 bytes; at most 262,144 are accepted"]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_deepest_nesting_is_read_and_one_level_more_is_not(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    assert mistakes_in(opening * DEEPEST + b"1" + closing * DEEPEST) == []
    deeper = mistakes_in(opening * (DEEPEST + 1) + b"1" + closing * (DEEPEST + 1))
    assert deeper == ["body: it is nested too deeply; at most 32 levels are accepted"]


@pytest.mark.parametrize(
    "text", ["[" * 100, '"' + "[" * 100, "\\" + "[" * 100, '\\"' + "[" * 100 + '\\\\"', "\\\\\\" + '"{' * 100]
)
def test_brackets_in_a_text_are_no_nesting(text: str) -> None:
    assert mistakes_in(json.dumps({"a": text, text: "]"}).encode()) == []


@pytest.mark.parametrize("hidden", [b'"\\\\"', b'"\\""', b'"[\\"]\\\\"', b'"\\u005c"'])
def test_no_text_hides_the_nesting_that_follows_it(hidden: bytes) -> None:
    body = b"[" + hidden + b"," + b"[" * 40 + b"]" * 40 + b"]"
    assert mistakes_in(body) == ["body: it is nested too deeply; at most 32 levels are accepted"]


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808", "1e308", "-0", "1E-400"])
def test_numbers_that_a_computer_has_are_read(number: str) -> None:
    assert mistakes_in(f"[{number}]".encode()) == []


def test_texts_in_all_scripts_are_read() -> None:
    texts = ["Ω≈ç", "日本語", "עברית", "😀", "e\u0301", "a\u00a0b", "\u200d"]
    assert mistakes_in(json.dumps(texts).encode()) == []
    assert mistakes_in(json.dumps(texts, ensure_ascii=False).encode()) == []


def test_a_mistake_is_printable_whatever_its_text_is() -> None:
    mistakes = MistakeList()
    mistakes.add(("a",), "\x1b[31m\n" * 100)
    assert mistakes.texts[0].isprintable()
    assert len(mistakes.texts[0]) == 300


def test_a_path_is_printable_whatever_the_keys_are() -> None:
    keys = ["a b", "\x1b[31m", "\u202eevil", "", "x" * 1000, '"']
    for key in keys:
        [text] = mistakes_in(json.dumps({"a": {key: 1}}).encode().replace(b"1}", b"NaN}"))
        assert text.isprintable()
        assert text.isascii()
        assert len(text) < 300
