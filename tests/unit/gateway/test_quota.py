"""Quotas of a template hold for every request, also among those that arrive together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.gateway.intake import Intake
from outlast.gateway.monitoring.audit import Audit, AuditBuffer
from outlast.gateway.record.record import Record
from outlast.gateway.request_admission import DAY, Admission
from outlast.gateway.requests import Delivery, FailureCode, Properties, RequestState
from outlast.gateway.settings import QueueSettings, Quota, Template

NOW = 1_800_000_000.0
QUEUE = QueueSettings("train", reply_to=("results",))


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    found = Record(tmp_path / "requests.sqlite", create=True)
    yield found
    found.close()


class Door:
    """The intake of a gateway with one template."""

    def __init__(self, record: Record, tmp_path: Path, **quota: int) -> None:
        self._record = record
        template = Template("fast", tmp_path, quota=Quota(**quota))
        admission = Admission(record, {"fast": template}, lambda *_: None)
        audit = AuditBuffer(Audit(tmp_path / "audit.log"))
        self._intake = Intake(record, {QUEUE.name: QUEUE}, admission, audit)
        self._sent = 0

    def send(self, *users: str, at: float = NOW) -> list[bool]:
        """Interpret requests of these users in one batch; return which of them were accepted."""
        ids = [b"id-%d" % (self._sent + i) for i in range(len(users))]
        self._sent += len(users)
        body = json.dumps({"outlast": 1, "kind": "train", "template": "fast", "parameters": {}}).encode()
        self._intake.record_deliveries(
            [
                Delivery("train", body, Properties(id, id, b"results", user_id=user.encode()))
                for id, user in zip(ids, users, strict=True)
            ],
            lambda _: None,
            at,
        )
        self._intake.interpret(at)
        found = [self._record.request_by_id(id) for id in ids]
        codes = {one.failure.code for one in found if one is not None and one.failure is not None}
        assert codes <= {FailureCode.OVER_QUOTA}, codes
        return [one is not None and one.state is RequestState.ACCEPTED for one in found]


def test_a_user_has_no_more_requests_waiting_than_allowed(record: Record, tmp_path: Path) -> None:
    door = Door(record, tmp_path, waiting_per_user=2)
    assert door.send("ann", "ann", "ann", "bob", "ann", "bob") == [True, True, False, True, False, True]
    assert door.send("ann", "bob", "eve") == [False, False, True]
    record.end(1, NOW, None)
    assert door.send("ann", "ann", "bob") == [True, False, False]


def test_all_users_together_have_no_more_requests_waiting_than_allowed(
    record: Record, tmp_path: Path
) -> None:
    door = Door(record, tmp_path, waiting=3)
    assert door.send("ann", "bob", "eve", "dan") == [True, True, True, False]
    record.end(2, NOW, None)
    assert door.send("dan", "dan") == [True, False]


def test_a_user_sends_no_more_requests_a_day_than_allowed(record: Record, tmp_path: Path) -> None:
    door = Door(record, tmp_path, per_day_per_user=2)
    assert door.send("ann", "ann", "ann") == [True, True, False]
    record.end(1, NOW, None)
    record.end(2, NOW, None)
    assert door.send("ann", "bob", at=NOW + DAY / 2) == [False, True]
    assert door.send("ann", at=NOW + DAY + 1) == [True]
