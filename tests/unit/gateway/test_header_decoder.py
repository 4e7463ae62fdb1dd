"""Properties of messages: whatever their bytes are, decoding ends, and ends where their length says."""

from __future__ import annotations

import struct
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.gateway.broker.header_decoder import DEEPEST, decode_properties, decode_table
from outlast.gateway.requests import Properties
from support.raw_amqp import (
    CONTENT_TYPE,
    CORRELATION_ID,
    HEADERS,
    TIMESTAMP,
    entry,
    long_text,
    nested,
    properties,
    table,
    text,
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=20),
    st.binary(max_size=20),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def encoded(value: dict[str, Any]) -> bytes:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, value)
    return b"".join(pieces)


@given(st.dictionaries(st.text(max_size=10), VALUES, max_size=6), st.binary(max_size=20))
def test_a_table_is_read_to_its_end_and_no_further(value: dict[str, Any], after: bytes) -> None:
    data = encoded(value)
    found, end = decode_table(data + after)
    assert end == len(data)
    assert not found.damaged


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_a_table_of_any_bytes_ends_where_its_length_says(content: bytes, after: bytes) -> None:
    _, end = decode_table(table(content) + after)
    assert end == 4 + len(content)


@given(st.binary(max_size=300))
def test_properties_of_any_bytes_are_decoded(data: bytes) -> None:
    assert isinstance(decode_properties(data), Properties)


@given(
    st.integers(0, 300),
    st.binary(max_size=4),
    st.dictionaries(st.text(max_size=10), VALUES, max_size=6),
)
def test_properties_with_one_change_are_decoded(place: int, change: bytes, headers: dict[str, Any]) -> None:
    data = properties(HEADERS | CORRELATION_ID, encoded(headers), text(b"id"))
    assert isinstance(decode_properties(data[:place] + change + data[place + len(change) :]), Properties)


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST + 2, 2000, 15000])
def test_a_table_that_is_nested_too_deeply_is_damaged_and_what_follows_is_decoded(depth: int) -> None:
    found = decode_properties(properties(HEADERS | CORRELATION_ID, table(nested(depth)), text(b"id")))
    assert found.correlation_id == b"id"
    assert found.damaged is (depth > DEEPEST)


@pytest.mark.parametrize(("seconds", "damaged"), [(0, False), (253402300799, False), (2**63 - 1, True)])
def test_a_time_that_no_calendar_has_is_damage(seconds: int, damaged: bool) -> None:
    header = entry(b"t", b"T", struct.pack(">Q", seconds))
    assert decode_properties(properties(HEADERS, table(header))).damaged is damaged


def test_text_that_is_not_utf8_stays_bytes_and_a_timestamp_is_a_number() -> None:
    found = decode_properties(
        properties(
            CONTENT_TYPE | CORRELATION_ID | TIMESTAMP, text(b"\xff"), text(b""), struct.pack(">Q", 2**64 - 1)
        )
    )
    assert found == Properties(content_type=b"\xff", correlation_id=b"", timestamp=2**64 - 1)


def test_the_newest_death_counts() -> None:
    def death(reason: bytes, expiration: bytes) -> bytes:
        return b"F" + table(
            entry(b"count", b"l", struct.pack(">q", 1))
            + entry(b"routing-keys", b"A", long_text(b"S" + long_text(b"reason")))
            + entry(b"nested", b"F", table(entry(b"reason", b"S", long_text(b"no"))))
            + entry(b"reason", b"S", long_text(reason))
            + entry(b"original-expiration", b"S", long_text(expiration))
        )

    deaths = entry(b"x-death", b"A", long_text(death(b"expired", b"5") + death(b"rejected", b"6")))
    other = entry(b"y-death", b"A", long_text(death(b"maxlen", b"7")))
    found = decode_properties(properties(HEADERS, table(other + deaths + other)))
    assert (found.death, found.original_expiration, found.damaged) == ("expired", b"5", False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        properties(CORRELATION_ID),
        properties(CORRELATION_ID, b"\x05ab"),
        properties(HEADERS, b"\0\0"),
        properties(HEADERS, b"\0\0\0\5ab"),
        properties(0, b"more"),
        properties(HEADERS, table(entry(b"a", b"?", b""))),
        properties(HEADERS, table(entry(b"a", b"S", b"\xff\xff\xff\xff"))),
    ],
)
def test_what_is_cut_off_or_unknown_is_damage(data: bytes) -> None:
    assert decode_properties(data).damaged
