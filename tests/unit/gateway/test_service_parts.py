"""Sending and answering: one slow or large answer keeps no other from its turn, whatever the clock does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.gateway.answer_limit import AnswerLimit
from outlast.gateway.answering import Answering
from outlast.gateway.answers.deliver import DeliveredResult, NotNow
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.monitoring.audit import Audit, AuditBuffer
from outlast.gateway.monitoring.heartbeat import Heartbeat, read_heartbeat, write_heartbeat
from outlast.gateway.record.record import Origin, Record
from outlast.gateway.record.record_file import RecordUnavailable
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    OutgoingMessage,
    PublishOutcome,
    PublishResult,
    RequestFailure,
    RequestState,
    TrainingRequest,
)
from outlast.gateway.sending import Sending
from outlast.gateway.settings import BrokerSettings
from support.broker import until

NOW = 1_800_000_000.0
MEGABYTE = 10**6


@pytest.fixture
def directory(tmp_path: Path) -> GatewayDirectory:
    found = GatewayDirectory(tmp_path)
    found.answers.mkdir()
    return found


@pytest.fixture
def record(directory: GatewayDirectory) -> Iterator[Record]:
    found = Record(directory.record, create=True)
    yield found
    found.close()


@pytest.fixture
def audit(directory: GatewayDirectory) -> AuditBuffer:
    return AuditBuffer(Audit(directory.audit))


class SmallLink:
    """A link that takes so many bytes, and confirms nothing."""

    health: Any = type("Health", (), {"message_limit": None})

    def __init__(self, most: int) -> None:
        self.most = most
        self.published: list[OutgoingMessage] = []

    @property
    def room(self) -> int:
        return 500 if sum(len(one.body) for one in self.published) < self.most else 0

    def publish(self, publication: OutgoingMessage) -> None:
        self.published.append(publication)


def sending(directory: GatewayDirectory, record: Record, audit: AuditBuffer, link: Any) -> Sending:
    return Sending(directory, record, link, audit, AnswerLimit(MEGABYTE, record, link), keep=1e6)


def ended(record: Record, number: int, failure: RequestFailure | None = None) -> None:
    id = b"id-%d" % number
    origin = Origin(id, "digest-%d" % number, "train", "outlast", "ann", "answers", id)
    found = record.add_request(origin, TrainingRequest("fast"), NOW, run_of="fast")
    record.end(found.number, NOW, failure)


def test_large_answers_are_read_only_as_the_link_has_room(
    directory: GatewayDirectory, record: Record, audit: AuditBuffer
) -> None:
    """After an outage of the broker, hundreds may be due at once."""
    for number in range(50):
        (directory.answers / str(number)).write_bytes(b"x" * MEGABYTE)
        record.add_answer(
            routing_key="q", correlation=None, kind="result", now=NOW, file=str(number), size=MEGABYTE
        )
    link = SmallLink(3 * MEGABYTE)
    assert sending(directory, record, audit, link).step((), NOW) == 3
    assert len(link.published) == 3


def test_outcomes_are_recorded_together_or_not_at_all_and_then_again(
    directory: GatewayDirectory, record: Record, audit: AuditBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [
        record.add_answer(routing_key="q", correlation=None, kind="result", now=NOW, body=b"{}")
        for _ in range(3)
    ]
    outcomes = [PublishOutcome(number, PublishResult.CONFIRMED) for number in numbers]
    parts = sending(directory, record, audit, SmallLink(MEGABYTE))
    confirm, calls = record.confirm, list[int]()

    def fail_once(number: int, now: float) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise RecordUnavailable("the disk is full")
        confirm(number, now)

    monkeypatch.setattr(record, "confirm", fail_once)
    with pytest.raises(RecordUnavailable):
        parts.settle(outcomes, NOW)
    assert record.waiting_answers()[0] == 3
    parts.settle(outcomes, NOW)
    assert record.waiting_answers()[0] == 0
    audit.flush()
    assert directory.audit.read_text().count('"answered"') == 3


@pytest.mark.parametrize("tries", [0, 1, 5, 30])
def test_an_answer_put_off_by_a_clock_that_was_ahead_is_due(record: Record, tries: int) -> None:
    number = record.add_answer(routing_key="q", correlation=None, kind="result", now=NOW, body=b"{}")
    due = NOW
    for _ in range(tries):
        due = record.put_off(number, due, PublishResult.RETURNED, "no such queue")
    assert record.due_answer_numbers(NOW - 7200, 5) == [number]
    assert record.due_answer_numbers(due, 5) == [number]
    if tries:
        assert record.due_answer_numbers(due - 1, 5) == []


def test_results_that_cannot_be_delivered_now_keep_no_other_answer_waiting(
    record: Record, audit: AuditBuffer
) -> None:
    def deliver(request: RecordedRequest) -> DeliveredResult:
        if request.number <= 250:
            raise NotNow("the upload's host does not answer")
        return DeliveredResult("file", 5)

    for number in range(250):
        ended(record, number)
    ended(record, 250)
    ended(record, 251, RequestFailure(FailureCode.CANCELLED, "cancelled"))
    answering = Answering(record, deliver, audit, keep=1e6)

    def all_answered() -> bool:
        answering.step(NOW)
        return len(record.due_answer_numbers(NOW, 1000)) == 2

    until(all_answered, "the last two wait behind the others")
    assert len(list(record.requests([RequestState.ENDED]))) == 252


def test_a_gateway_that_takes_no_messages_waits_although_some_are_there() -> None:
    """A drained gateway would go round and round."""
    link = BrokerLink(BrokerSettings(), ())
    link.add_delivery(Delivery("train", b"{}"))
    assert link.wait(60.0)
    assert not link.wait(0.0, deliveries=False)
    woken = threading.Thread(target=link.wait, args=(60.0,), kwargs={"deliveries": False})
    woken.start()
    publication = OutgoingMessage(1, "", "q", b"")
    link.publish(publication)  # the link does not run: it has an outcome at once
    woken.join(30)
    assert not woken.is_alive()


def test_a_heartbeat_is_written_over_the_one_before_if_there_is_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gateway.json"
    write_heartbeat(path, Heartbeat(pid=1, troubles={"the record": "x" * 2000}))
    before = path.stat()

    def fail(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    write_heartbeat(path, Heartbeat(pid=2))
    found = read_heartbeat(path)
    assert found is not None and found.pid == 2 and not found.troubles
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert [each.name for each in tmp_path.iterdir()] == ["gateway.json"]
