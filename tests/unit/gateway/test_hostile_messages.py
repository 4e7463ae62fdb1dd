"""Each hostile message is answered as the table says; see `support.hostile_messages`."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pytest

from outlast.gateway.message_formats.dialects import dialect_of
from outlast.gateway.message_formats.encoding import encode_failure
from outlast.gateway.message_formats.message_identity import request_id
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requests import Delivery, Properties, Quarantined, RequestFailure, RequestRefused
from outlast.gateway.settings import QueueSettings
from support.hostile_messages import QUARANTINED, SERVED, Message, Site, good_message, hostile_messages

NOW = 1_795_000_000.0
SITE = Site()
QUEUES = {
    "outlast": QueueSettings(SITE.queue, reply_to=(SITE.replies,)),
    "rodan": QueueSettings(SITE.rodan_queue, "rodan", "pages", reply_to=(SITE.rodan_replies,)),
}
MESSAGES = hostile_messages(SITE)
FIELDS = {field.name for field in dataclasses.fields(Properties)}


def delivery_of(message: Message) -> Delivery:
    known = {key: value for key, value in message.properties.items() if key in FIELDS}
    return Delivery(QUEUES[message.dialect].name, message.body, Properties(**known, death=message.death))


def queue_of(message: Message) -> QueueSettings:
    if "user_id" in message.properties:
        return dataclasses.replace(QUEUES[message.dialect], users=("app", "lab"))
    return QUEUES[message.dialect]


def read(message: Message) -> tuple[str, RequestFailure | None]:
    try:
        read_message(delivery_of(message), queue_of(message), NOW)
    except Quarantined as error:
        assert str(error).isprintable()
        return QUARANTINED, None
    except RequestRefused as error:
        return f"refused:{error.failure.code.value}", error.failure
    return SERVED, None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: ascii(message.name)[1:-1])
def test_a_hostile_message_is_answered_as_the_table_says(message: Message) -> None:
    result, failure = read(message)
    assert result == message.read_as, failure
    if failure is None:
        assert not message.names
        return
    written = " ".join((failure.message, *failure.mistakes))
    assert message.names in written
    assert written.isprintable()
    dialect = dialect_of(delivery_of(message), QUEUES[message.dialect])
    answer = encode_failure(dialect, request_id(delivery_of(message), dialect), failure)
    assert len(answer) < 30_000
    assert failure.code.value in answer.decode("ascii")


@pytest.mark.parametrize("dialect", ["outlast", "rodan"])
def test_the_good_messages_of_the_table_are_served(dialect: str) -> None:
    assert read(good_message(SITE, 1, dialect)) == (SERVED, None)


def test_the_table_has_a_name_for_each_row_and_rows_for_each_kind() -> None:
    names = [message.name for message in MESSAGES]
    assert len(set(names)) == len(names)
    kinds = {int(name.partition("-")[0]) for name in names}
    assert kinds >= {*range(1, 18), 19, 20, 23, 24, 26, 27, 28, 29, 30, 31, 32}
    assert {message.after for message in MESSAGES if message.after} <= set(names)


def test_memory_stays_flat_while_16_MB_are_refused() -> None:
    large = next(message for message in MESSAGES if message.name == "4-lists-of-16-MB")
    assert len(large.body) > 15_900_000
    read(large)
    tracemalloc.start()
    try:
        read(large)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_memory_is_bounded_for_every_hostile_message() -> None:
    worst = {}
    for message in MESSAGES:
        tracemalloc.start()
        try:
            read(message)
            worst[message.name] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert {name: peak for name, peak in worst.items() if peak > 32_000_000} == {}
