"""The record of a gateway: messages, requests and answers survive, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import BadInput, JournalDamaged
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.housekeeping import INTERVAL, Housekeeping
from outlast.gateway.record.message_record import LARGEST_BODY
from outlast.gateway.record.outbox import LONGEST_PAUSE
from outlast.gateway.record.record import ImpossibleRequestStep, Origin, Record
from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    InputReference,
    Properties,
    PublishResult,
    RequestFailure,
    RequestState,
    TrainingRequest,
)

NOW = 1_800_000_000.0


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    found = Record(tmp_path / "requests.sqlite", create=True)
    yield found
    found.close()


def origin(id: bytes, user: str = "ann", reply_to: str = "answers") -> Origin:
    return Origin(id, "digest-%s" % id.hex(), "requests", "outlast", user, reply_to, id)


def accept(record: Record, id: bytes, user: str = "ann", **facts: float) -> int:
    body = TrainingRequest("pages", {"epochs": 3}, {"pages": InputReference("/a", "", 5)}, {"cpus": 1})
    return record.add_request(origin(id, user), body, NOW, run_of="pages", **facts).number


def message(record: Record, body: bytes, digest: str, redelivered: bool = False, at: float = NOW) -> int:
    return record.add_messages([(Delivery("requests", body, redelivered=redelivered), digest)], at)[0]


def test_a_message_is_recorded_with_all_its_bytes_and_properties(record: Record) -> None:
    properties = Properties(b"\xff\x00id", b"corr", b"answers", timestamp=2**64 - 1, damaged=True)
    (number,) = record.add_messages([(Delivery("requests", b"\x00\xff{", properties, True), "d")], NOW)
    (found,) = record.new_messages(10)
    assert (found.number, found.size, found.state) == (number, 3, "recorded")
    assert found.delivery == Delivery("requests", b"\x00\xff{", properties, True)


def test_of_a_body_that_is_too_large_only_the_beginning_is_kept(record: Record) -> None:
    message(record, b"x" * (LARGEST_BODY + 1), "d")
    (found,) = record.new_messages(10)
    assert found.size == LARGEST_BODY + 1
    assert len(found.delivery.body) < 10_000


def test_a_request_is_read_as_it_was_recorded(record: Record) -> None:
    number = accept(record, b"one", deadline=NOW + 60)
    found = record.request(number)
    assert found is not None
    assert found.body.inputs["pages"].size == 5
    assert found.state is RequestState.ACCEPTED
    assert (found.run, found.deadline) == ("pages-%06d" % number, NOW + 60)
    assert record.request_by_id(b"one") == record.request_by_run(found.run) == found


def test_a_failure_is_read_as_it_was_recorded(record: Record) -> None:
    failure = RequestFailure(FailureCode.INVALID_REQUEST, "no", "write it", ("a: b", "c: d"), 3)
    request = record.add_request(origin(b"one"), TrainingRequest(""), NOW, failure=failure)
    assert request.failure == failure
    assert request.state is RequestState.REFUSED


def test_a_request_goes_through_its_states_in_one_direction(record: Record) -> None:
    number = accept(record, b"one")
    assert record.start(number, NOW)
    assert not record.start(number, NOW + 1)
    record.end(number, NOW + 2, None)
    with pytest.raises(ImpossibleRequestStep):
        record.start(number, NOW + 3)
    with pytest.raises(ImpossibleRequestStep):
        record.end(number, NOW + 3, None)
    record.close_request(number, RequestState.ANSWERED, NOW + 4)
    with pytest.raises(ImpossibleRequestStep):
        record.close_request(number, RequestState.UNDELIVERED, NOW + 5)
    found = record.request(number)
    assert found is not None
    assert (found.started, found.ended, found.answered) == (NOW, NOW + 2, NOW + 4)


def test_two_requests_never_have_the_same_id(record: Record) -> None:
    accept(record, b"one")
    with pytest.raises(JournalDamaged):
        accept(record, b"one")
    assert len(list(record.requests())) == 1


def test_what_fails_in_a_part_of_a_transaction_undoes_that_part_only(record: Record) -> None:
    with record.transaction():
        first = accept(record, b"one")
        with pytest.raises(RuntimeError), record.savepoint():
            accept(record, b"two")
            raise RuntimeError
        accept(record, b"three")
    assert [request.id for request in record.requests()] == [b"one", b"three"]
    assert record.request(first) is not None


def test_a_transaction_that_fails_leaves_nothing(record: Record) -> None:
    with pytest.raises(RuntimeError), record.transaction():
        accept(record, b"one")
        raise RuntimeError
    assert not list(record.requests())


def test_only_a_message_that_was_not_acknowledged_or_was_recent_counts_as_delivered_again(
    record: Record,
) -> None:
    first = message(record, b"{}", "same")
    again = message(record, b"{}", "same", redelivered=True, at=NOW + 5 * 3600)
    other = message(record, b"{}", "same", redelivered=False, at=NOW + 5 * 3600)
    by_number = {one.number: one for one in record.new_messages(10)}
    assert not record.is_same_delivery(by_number[first])
    assert record.is_same_delivery(by_number[again])
    assert not record.is_same_delivery(by_number[other])
    record.mark_acked([first, again, other])
    late = message(record, b"{}", "same", redelivered=True, at=NOW + 10 * 3600)
    soon = message(record, b"{}", "same", redelivered=True, at=NOW + 10 * 3600 + 60)
    by_number = {one.number: one for one in record.new_messages(10)}
    assert not record.is_same_delivery(by_number[late])
    assert record.is_same_delivery(by_number[soon])


def test_a_user_with_many_requests_does_not_keep_another_from_starting(record: Record) -> None:
    for number in range(50):
        accept(record, b"ann-%d" % number)
    bob = accept(record, b"bob", "bob")
    first = record.choose_next("pages", 2)
    assert [request.user for request in first] == ["ann", "bob"]
    for request in first:
        record.mark_submitted(request.number, NOW)
    assert record.choose_next("pages", 2) == []
    record.end(bob, NOW, None)
    assert [request.user for request in record.choose_next("pages", 2)] == ["ann"]


def test_requests_of_one_user_start_in_their_order_and_cancelled_ones_do_not(record: Record) -> None:
    numbers = [accept(record, b"%d" % number) for number in range(4)]
    assert record.ask_cancel(numbers[1], "cancelled")
    assert [one.number for one in record.choose_next("pages", 3)] == [numbers[0], numbers[2], numbers[3]]
    assert [one.number for one in record.to_cancel(NOW)] == [numbers[1]]


def test_a_deadline_that_is_over_is_found_once_the_request_is_open(record: Record) -> None:
    number = accept(record, b"one", deadline=NOW + 10)
    assert record.to_cancel(NOW + 9.9) == []
    assert [one.number for one in record.to_cancel(NOW + 10)] == [number]
    record.end(number, NOW + 11, None)
    assert record.to_cancel(NOW + 12) == []
    assert not record.ask_cancel(number, "cancelled")


def test_an_ended_request_waits_for_an_answer_until_one_is_in_the_outbox(record: Record) -> None:
    number = accept(record, b"one")
    assert record.without_answer(10) == []
    record.end(number, NOW, None)
    assert [one.number for one in record.without_answer(10)] == [number]
    answer = record.add_answer(
        routing_key="answers", correlation=b"one", kind="result", now=NOW, body=b"{}", request=number
    )
    assert record.without_answer(10) == []
    record.retire(answer, "withdrawn", "its file is gone")
    assert [one.number for one in record.without_answer(10)] == [number]


def test_an_answer_that_is_not_taken_is_sent_again_with_growing_pauses(record: Record) -> None:
    answer = record.add_answer(routing_key="a", correlation=None, kind="failure", now=NOW, body=b"{}")
    pauses, now = [], NOW
    for _ in range(12):
        assert record.due_answer_numbers(now, 5) == [answer]
        due = record.put_off(answer, now, PublishResult.RETURNED, "no such queue")
        assert record.due_answer_numbers(due - 0.01, 5) == []
        pauses.append(due - now)
        now = due
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    record.confirm(answer, now)
    assert record.due_answer_numbers(now + 1e6, 5) == []
    record.send_again(answer, now + 5)
    assert record.due_answer_numbers(now + 5, 5) == [answer]


def test_another_process_sees_what_was_recorded_and_may_write_meanwhile(record: Record) -> None:
    number = accept(record, b"one")
    other = Record(record.path)
    assert other.ask_cancel(number, "cancelled", "by hand")
    other.close()
    assert [one.number for one in record.to_cancel(NOW)] == [number]


def test_a_record_that_is_not_there_or_of_another_format_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gateway up"):
        Record(tmp_path / "none.sqlite")
    record = Record(tmp_path / "requests.sqlite", create=True)
    record.set_about("format", "99")
    record.close()
    with pytest.raises(JournalDamaged, match="format 99"):
        Record(tmp_path / "requests.sqlite")


def test_a_damaged_record_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "requests.sqlite"
    path.write_bytes(b"this is no database, although it is long enough to be taken for one" * 20)
    with pytest.raises(JournalDamaged, match="restore a copy"):
        Record(path)


def test_old_messages_and_answers_are_removed_and_their_requests_stay_known(
    record: Record, tmp_path: Path
) -> None:
    directory = GatewayDirectory(tmp_path)
    directory.answers.mkdir()
    (directory.answers / "1.json").write_bytes(b"{}")
    request = accept(record, b"one")
    old, waiting, aside = (message(record, b"{}", digest) for digest in "abc")
    record.set_message(old, "request", "", request)
    record.set_message(aside, "quarantined", "odd")
    sent = record.add_answer(routing_key="a", correlation=None, kind="result", now=NOW, file="1.json")
    unsent = record.add_answer(routing_key="a", correlation=None, kind="failure", now=NOW, body=b"{}")
    record.confirm(sent, NOW)
    housekeeping = Housekeeping(directory, record, keep=100.0)
    housekeeping.step(NOW + 99)
    assert record.message(old) is not None
    housekeeping.step(NOW + 99 + INTERVAL)
    assert record.message(old) is None
    assert record.message(waiting) is not None
    assert record.message(aside) is not None
    assert not (directory.answers / "1.json").exists()
    assert record.due_answer_numbers(NOW + 1e6, 5) == [unsent]
    assert record.answer(unsent) is not None
    assert record.request_by_id(b"one") is not None
