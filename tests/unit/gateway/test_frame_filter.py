"""What the AMQP library receives: the same frames, whatever senders wrote into properties and bodies."""

from __future__ import annotations

import struct

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.gateway.broker.frame_filter import FrameFilter
from support.raw_amqp import CORRELATION_ID, HEADERS, nested, properties, table, text


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHL", kind, channel, len(payload)) + payload + b"\xce"


def message(channel: int, body: bytes, sent: bytes, piece: int = 1000) -> bytes:
    header = frame(2, channel, struct.pack(">HHQ", 60, 0, len(body)) + sent)
    pieces = [frame(3, channel, body[start : start + piece]) for start in range(0, len(body), piece)]
    return header + b"".join(pieces)


def decoded(data: bytes) -> list[object]:
    """Decode as the library does."""
    frames = []
    while data:
        consumed, found = pika.frame.decode_frame(data)
        assert consumed, data
        frames.append(found)
        data = data[consumed:]
    return frames


@given(st.lists(st.integers(1, 50), max_size=40))
def test_frames_arrive_whole_however_the_bytes_were_cut(cuts: list[int]) -> None:
    stream = frame(8, 0, b"") + message(1, b"body", properties(CORRELATION_ID, text(b"\xff")))
    frame_filter, passed = FrameFilter(1000), b""
    for cut in [*cuts, len(stream)]:
        passed += frame_filter.feed(stream[:cut])
        stream = stream[cut:]
    _, header, body = decoded(passed)
    content = frame_filter.pop(header.properties.message_id)  # type: ignore[attr-defined]
    assert (content.size, content.properties.correlation_id) == (4, b"\xff")
    assert body.fragment == b"body"  # type: ignore[attr-defined]


def test_only_the_beginning_of_a_body_is_passed_on_and_each_frame_stays_a_sign_of_life() -> None:
    frame_filter = FrameFilter(1500)
    stream = message(1, bytes(5000), properties(0)) + message(1, b"next", properties(0))
    frames = decoded(frame_filter.feed(stream))
    assert [type(each).__name__ for each in frames] == [
        *("Header", "Body", "Body", "Heartbeat", "Heartbeat", "Heartbeat", "Header", "Body"),
    ]
    assert [each.body_size for each in frames if hasattr(each, "body_size")] == [1500, 4]
    assert frame_filter.pop("1").size == 5000


def test_bodies_on_several_channels_do_not_mix() -> None:
    frame_filter = FrameFilter(10)
    one, two = (message(channel, b"%d" % channel * 20, properties(0), 10) for channel in (1, 2))
    header, piece = len(frame(2, 1, bytes(14))), len(frame(3, 1, bytes(10)))
    mixed = one[:header] + two[: header + piece] + one[header:] + two[header + piece :]
    bodies = [each for each in decoded(frame_filter.feed(mixed)) if hasattr(each, "fragment")]
    assert [(each.channel_number, each.fragment) for each in bodies] == [(2, b"2" * 10), (1, b"1" * 10)]


def test_headers_that_end_the_library_do_not_reach_it() -> None:
    stream = message(1, b"x", properties(HEADERS, table(nested(15000))))
    with pytest.raises(RecursionError):
        pika.frame.decode_frame(stream)
    frame_filter = FrameFilter(10)
    header, _ = decoded(frame_filter.feed(stream))
    assert frame_filter.pop(header.properties.message_id).properties.damaged  # type: ignore[attr-defined]


def test_the_header_of_a_server_of_another_protocol_is_passed_on() -> None:
    assert FrameFilter(10).feed(b"AMQP\0\0\x09\x01") == b"AMQP\0\0\x09\x01"
