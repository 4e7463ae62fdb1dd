"""What surrounds a gateway fails: the broker, its queues, the disk, the clock, one of its experiments.

Nothing is lost, `gateway status --json` has it within 30 seconds, and the gateway continues by itself.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.broker import Broker, PrivateBroker, until
from support.gateway_application import REPLIES, REQUESTS, Application
from support.gateway_lab import GatewayLab, gateway_lab

PATIENCE = 90.0
#: Seconds for which a broker stays frozen after that was noticed. `make storm` has a longer time.
FREEZE = float(os.environ.get("OUTLAST_GATEWAY_FREEZE", "1"))
LATE, FULL = REPLIES + ".late", REPLIES + ".full"


@pytest.fixture
def broker(fragile_broker: PrivateBroker) -> Iterator[Broker]:
    with fragile_broker.own_virtual_host() as own:
        yield own


@pytest.fixture
def gateway(broker: Broker) -> Iterator[GatewayLab]:
    with gateway_lab(broker) as lab:
        yield lab


def send(application: Application, numbers: range, seconds: float = 0.0) -> dict[str, int]:
    good = {"id-%d" % number: number for number in numbers}
    for id, number in good.items():
        application.request(id, number=number, seconds=seconds)
    return good


def assert_well(lab: GatewayLab, application: Application, good: dict[str, int], doubled: int = 0) -> None:
    application.wait_for_answers(PATIENCE, lab.log)
    lab.until_all_answered()
    lab.assert_answered_once(application, good, doubled)


def trouble_of(status: Any, name: str) -> str:
    return str(status["gateway"]["troubles"].get(name, "")) if status["gateway"] else ""


def until_accepted(lab: GatewayLab, number: int) -> None:
    until(lambda: lab.log().count("accepted as") >= number, lab.log)


def test_answers_wait_for_a_broker_that_is_frozen(fragile_broker: PrivateBroker, gateway: GatewayLab) -> None:
    gateway.up()
    application = gateway.application()
    good = send(application, range(3), seconds=2)
    until_accepted(gateway, 3)
    fragile_broker.freeze()
    gateway.until_status("a silent broker", lambda status: not status["connected"])
    until(lambda: gateway.log().count("ended: finished") >= 3, gateway.log)
    gateway.pause(FREEZE)
    fragile_broker.thaw()
    good |= send(application, range(3, 5))
    assert_well(gateway, application, good)
    gateway.until_status("well again", lambda status: status["connected"] and not status["gateway"]["reason"])


def test_answers_wait_for_the_end_of_an_alarm(fragile_broker: PrivateBroker, gateway: GatewayLab) -> None:
    gateway.up()
    application = gateway.application()
    gateway.until_status("connected", lambda status: status["connected"])
    # A connection that was lost before must not hide what is wrong now.
    fragile_broker.kill()
    gateway.until_status("no broker", lambda status: not status["connected"])
    fragile_broker.start()
    good = send(application, range(3), seconds=600)
    until_accepted(gateway, 3)
    fragile_broker.set_alarm(True)
    try:
        gateway.release.touch()
        until(lambda: gateway.log().count("ended: finished") >= 3, gateway.log)
        gateway.until_status("the alarm", lambda status: "memory" in status["gateway"]["reason"])
        assert gateway.status()["connected"] and not application.answers
    finally:
        fragile_broker.set_alarm(False)
    assert_well(gateway, application, good)
    gateway.until_status("no alarm", lambda status: not status["gateway"]["reason"])


def test_a_queue_deleted_under_the_consumer_is_consumed_again_once_it_exists(
    broker: Broker, gateway: GatewayLab
) -> None:
    gateway.write_settings(queues=[{"name": REQUESTS, "reply_to": [REPLIES], "declare": False}])
    broker.declare_queue(REQUESTS)
    gateway.up()
    application = gateway.application()
    good = send(application, range(1))
    application.wait_for_answers(PATIENCE, gateway.log)
    broker.delete_queue(REQUESTS)
    gateway.until_status("no queue", lambda status: status["gateway"]["queues"][REQUESTS] != "consumed")
    broker.declare_queue(REQUESTS)
    good |= send(application, range(1, 3))
    assert_well(gateway, application, good)
    gateway.until_status("consumed", lambda status: status["gateway"]["queues"][REQUESTS] == "consumed")


def test_answers_wait_for_a_queue_that_does_not_exist_yet_and_for_one_that_is_full(
    broker: Broker, gateway: GatewayLab
) -> None:
    limit = {"x-max-length": 1, "x-overflow": "reject-publish"}
    broker.declare_queue(FULL, arguments=limit)
    gateway.up()
    late = gateway.application(LATE, collects=False)
    full = gateway.application(FULL, limit, collects=False)
    ids = ["id-%d" % number for number in range(6)]
    for number, id in enumerate(ids):
        (late if number < 3 else full).request(id, number=number)
    # One is in the queue, and five wait.
    gateway.until_status("answers that wait", lambda status: status["answers"]["waiting"] == 5, PATIENCE)
    gateway.until_status("why they wait", lambda status: status["answers"]["reason"])
    with gateway.record() as record:
        reasons = {
            answer.reason.partition(":")[0]
            for answer in map(record.answer, record.due_answer_numbers(float("inf"), 10))
        }
    assert reasons <= {"returned", "nacked", ""}, reasons
    late.collect()
    full.collect()
    assert_well(gateway, late, {id: number for number, id in enumerate(ids[:3])})
    assert_well(gateway, full, {id: number + 3 for number, id in enumerate(ids[3:])})


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Mount a file system of a few megabytes at a directory below a test's own."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)


def fill(place: Path) -> None:
    """Fill the disk to its last byte."""
    with contextlib.suppress(OSError), (place / "ballast").open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_a_full_disk_loses_nothing(broker: Broker) -> None:
    """Requests that come while nothing can be recorded stay in the queue."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = contextlib.ExitStack()
    with gateway_lab(broker, on_directory=lambda place: disk.enter_context(small_disk(place))) as lab, disk:
        lab.up()
        application = lab.application()
        good = send(application, range(1))
        application.wait_for_answers(PATIENCE, lab.log)
        good |= send(application, range(1, 3), seconds=2)
        until_accepted(lab, 3)
        fill(lab.directory.root)
        good |= send(application, range(3, 5))
        lab.until_status("a full disk", lambda status: "full" in trouble_of(status, "the record"))
        assert lab.status()["running"]
        (lab.directory.root / "ballast").unlink()
        assert_well(lab, application, good)
        lab.until_status("no trouble", lambda status: not status["gateway"]["troubles"])


CLOCK = """
import os, time
real = time.time
def jumped():
    try:
        with open(%r) as file:
            return real() + float(file.read() or 0)
    except OSError:
        return real()
time.time = jumped
"""


def test_a_clock_that_jumps_delays_and_loses_nothing(gateway: GatewayLab) -> None:
    offset = gateway.lab.root / "offset"

    def jump(seconds: float) -> None:
        offset.with_suffix(".new").write_text(str(seconds))
        offset.with_suffix(".new").replace(offset)

    gateway.up(prelude=CLOCK % str(offset))
    application = gateway.application()
    late = gateway.application(LATE, collects=False)
    good = send(application, range(2), seconds=3)
    until_accepted(gateway, 2)
    jump(7200)
    late.request("late", number=77)
    application.wait_for_answers(PATIENCE, gateway.log)
    gateway.until_status("an answer that waits", lambda status: status["answers"]["tries"])
    good |= send(application, range(2, 4), seconds=1)
    until_accepted(gateway, 5)
    jump(-7200)
    late.collect()
    # It was put off by a clock that was two hours ahead.
    late.wait_for_answers(30, gateway.log)
    good |= send(application, range(4, 5))
    assert_well(gateway, application, good)
    assert_well(gateway, late, {"late": 77})


def test_an_experiment_whose_journal_cannot_be_written_stops_no_other(broker: Broker) -> None:
    with gateway_lab(broker, templates=("fast", "other")) as lab:
        process = lab.up()
        application = lab.application()
        application.request("first", template="other", number=1)
        application.wait_for_answers(PATIENCE, lab.log)
        lab.stop(process)
        with locked(lab.directory.experiment("other") / "journal.sqlite"):
            # Both for a gateway that runs and for one that starts.
            process = lab.up()
            application.request("second", template="other", number=2)
            application.request("third", template="fast", number=3)
            until(lambda: "third" in application.answers, lab.log, PATIENCE)
            lab.until_status("the journal", lambda status: trouble_of(status, "other"), PATIENCE)
            assert "second" not in application.answers
        assert_well(lab, application, {"first": 1, "second": 2, "third": 3})
        lab.until_status("no trouble", lambda status: not status["gateway"]["troubles"], PATIENCE)


@contextlib.contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Keep a journal from being written, as a backup program that copies it does."""
    holder = sqlite3.connect(journal, isolation_level=None, timeout=30)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()
