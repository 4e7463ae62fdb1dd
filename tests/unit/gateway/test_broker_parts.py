"""Credentials, pauses, and how queues are created: what needs no broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.errors import BadInput
from outlast.gateway.broker.broker_credentials import read_broker_credentials
from outlast.gateway.broker.link_health import default_message_limit
from outlast.gateway.broker.pauses import PauseLimits, Pauses
from outlast.gateway.broker.queue_plan import Creation, plan_queues
from outlast.gateway.settings import QueueSettings


def credentials(folder: Path, content: str, mode: int = 0o600) -> Path:
    path = folder / "broker.yaml"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_the_password_is_read_and_is_in_no_representation(tmp_path: Path) -> None:
    found = read_broker_credentials(credentials(tmp_path, "user: a\npassword: 'hunter2'\n"))
    assert (found.user, found.password) == ("a", "hunter2")
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ("user: a\npassword: hunter2\n", 0o604),
        ("user: a\npassword: hunter2\n", 0o640),
        ("user: a\npassword: [hunter2\n", 0o600),
        ("user: a\npassword: &hunter2\n  - *hunter3\n", 0o600),
        ("user: a\npassword: !hunter2 {}\n", 0o600),
        ("user: a\nhunter2: x\n", 0o600),
        ("- hunter2\n", 0o600),
        ("user: a\npassword: 123\n", 0o600),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_quoting_it(
    tmp_path: Path, content: str, mode: int
) -> None:
    with pytest.raises(BadInput) as caught:
        read_broker_credentials(credentials(tmp_path, content, mode))
    assert "hunter" not in str(caught.value)
    assert "broker.yaml" in str(caught.value)


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_broker_credentials(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="not a regular file"):
        os.mkfifo(tmp_path / "pipe")
        read_broker_credentials(tmp_path / "pipe")


def test_pauses_grow_vary_and_are_bounded() -> None:
    pauses = Pauses(PauseLimits(1.0, 30.0))
    found = [pauses.next() for _ in range(2000)]
    assert all(0.5 <= pause <= 1.0 for pause in found[:1])
    assert all(2**n / 2 <= found[n] <= 2**n for n in range(5))
    assert all(15.0 <= pause <= 30.0 for pause in found[5:])
    assert len(set(found)) > 1000
    assert pauses.failures == 2000
    pauses.reset()
    assert pauses.next() <= 1.0


@pytest.mark.parametrize(
    ("version", "mebibytes"),
    [("3.7.1", 512), ("3.8.9", 128), ("3.13.7", 128), ("4.0.5", 16), ("4.3.6", 16), ("10.0", 16)],
)
def test_the_message_limit_follows_from_the_version(version: str, mebibytes: int) -> None:
    assert default_message_limit(version) == mebibytes * 2**20


@pytest.mark.parametrize("version", ["", "x", "4", "4.x", "٤.٠", "9999999999.1"])
def test_a_version_of_another_form_has_no_limit(version: str) -> None:
    assert default_message_limit(version) is None


def test_queues_of_dead_letters_are_declared_first_and_once() -> None:
    queues = [
        QueueSettings("a", dead_letters="dead"),
        QueueSettings("b", dead_letters="dead"),
        QueueSettings("c", dialect="rodan"),
    ]
    assert [(plan.name, plan.is_dead_letters) for plan in plan_queues(queues)] == [
        *(("dead", True), ("a", False), ("b", False), ("c", False)),
    ]


def test_a_queue_is_created_as_its_dialect_and_the_version_need() -> None:
    (dead, own, rodan) = plan_queues(
        [QueueSettings("own", dead_letters="dead"), QueueSettings("r", dialect="rodan")]
    )
    for version in ("3.7.0", "3.10.8", "4.3.6", ""):
        assert rodan.creation(version) == Creation(durable=False)
    assert own.creation("3.7.0").arguments == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    assert own.creation("3.9.0").arguments["x-queue-type"] == "quorum"
    assert "x-dead-letter-strategy" not in own.creation("3.9.0").arguments
    assert own.creation("4.3.6").arguments["x-dead-letter-strategy"] == "at-least-once"
    assert dead.creation("3.10.8") == Creation(durable=True, arguments={"x-queue-type": "quorum"})
    assert all(plan.creation("3.10.8").durable for plan in (dead, own))
