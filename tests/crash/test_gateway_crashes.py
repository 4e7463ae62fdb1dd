"""The gateway is killed at every crash point, and its broker at random ones; every request is answered.

Nothing is computed twice for a result. An answer comes twice only if the gateway, or the broker, died between
publishing it and recording that it was confirmed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from outlast.gateway.gateway_crashpoints import CRASH_POINTS
from outlast.gateway.requests import RequestState
from support.broker import PrivateBroker, private_broker, shared_broker, until
from support.gateway_application import REQUESTS, Application
from support.gateway_lab import GatewayLab, gateway_lab

#: Seconds for a few requests, also on a busy machine.
PATIENCE = 90.0
#: A gateway that is killed here may have sent an answer that it does not know of: this one, or another.
DOUBLING = ("gateway.published", "gateway.confirmed", "gateway.answered")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayLab]:
    """A gateway that is not running; between the tests it ends by itself."""
    with shared_broker().own_virtual_host() as broker, gateway_lab(broker) as lab:
        broker.declare_queue(REQUESTS)
        yield lab


@pytest.fixture(scope="module")
def application(gateway: GatewayLab) -> Application:
    return gateway.application()


def send_batch(application: Application, name: str, first: int) -> dict[str, int]:
    """Send three good requests and two that are refused; return the numbers of the good ones by their ids."""
    good = {"%s-%d" % (name, number): number for number in range(first, first + 3)}
    for id, number in good.items():
        application.request(id, number=number)
    application.request(name + "-unknown", template="slow")
    application.request(name + "-wrong", number="seven")
    until(lambda: application.all_sent, "the requests were not taken")
    return good


def answered(lab: GatewayLab) -> set[str]:
    """Return the requests whose answers are recorded as confirmed."""
    with lab.record() as record:
        return {request.shown_id for request in record.requests([RequestState.ANSWERED])}


def assert_answered(lab: GatewayLab, application: Application, good: dict[str, int]) -> None:
    application.wait_for_answers(PATIENCE, lab.log)
    lab.until_all_answered()
    for id, number in good.items():
        assert {each.body for each in application.answers[id]} == {application.answers[id][0].body}
        assert application.answers[id][0].result == {"number": number, "square": number * number}
    kinds = {id: all_[0].answer.facts.get("code") for id, all_ in application.answers.items()}
    refused = {id: kind for id, kind in kinds.items() if kind is not None}
    assert set(refused.values()) <= {"unknown_template", "invalid_request"}, refused
    assert not lab.computed_twice()


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_gateway_killed_here_answers_every_request_and_computes_nothing_twice(
    gateway: GatewayLab, application: Application, point: str
) -> None:
    # They wait in the queue before it starts, so it takes them together.
    good = send_batch(application, point, 10 * CRASH_POINTS.index(point))
    before = set(application.doubled())
    gateway.await_crash(gateway.up(crash_at=point), point)
    recorded = answered(gateway)
    process = gateway.up()
    assert_answered(gateway, application, good)
    doubled = set(application.doubled()) - before
    assert not doubled or point in DOUBLING, "answered twice: %s" % doubled
    assert not doubled & recorded, "sent again although it was recorded: %s" % (doubled & recorded)
    assert doubled or point != "gateway.confirmed", "what is confirmed and not recorded is sent again"
    gateway.stop(process)


def test_a_gateway_that_dies_after_every_confirm_comes_to_an_end(
    gateway: GatewayLab, application: Application
) -> None:
    """Each start sends at least one answer more, and none for ever."""
    good = send_batch(application, "again", 500)
    for _ in range(3):
        gateway.await_crash(gateway.up(crash_at="gateway.answered"), "gateway.answered")
    process = gateway.up()
    assert_answered(gateway, application, good)
    gateway.stop(process)


@pytest.fixture(scope="module")
def fragile() -> Iterator[PrivateBroker]:
    with private_broker() as broker:
        yield broker


def test_a_broker_killed_at_any_step_loses_no_request_and_no_answer(
    fragile: PrivateBroker, record_property: pytest.RecordProperty
) -> None:
    seed = random.randrange(10**9)
    record_property("seeds", seed)
    chance = random.Random(seed)
    with gateway_lab(fragile) as lab:
        application = lab.application()
        process = lab.up()
        good: dict[str, int] = {}
        # Before the first one has arrived, while they run, while they end and are answered.
        for number, words in enumerate(("starting", "accepted", "ended:")):
            seen = lab.log().count(words)
            good |= {"r%d-%d" % (number, each): 10 * number + each for each in range(4)}
            for each in range(4):
                application.request("r%d-%d" % (number, each), number=10 * number + each, seconds=0.5 * each)
            if number:
                until(lambda words=words, seen=seen: lab.log().count(words) > seen, lab.log)  # type: ignore[misc]
            # At a moment that nobody has chosen: this is what is tested, and nothing depends on it.
            lab.pause(chance.uniform(0, 0.5))
            fragile.kill()
            lab.until_status("the broker is away", lambda status: not status["connected"])
            fragile.start()
        assert_answered(lab, application, good)
        assert len(application.doubled()) <= 12
        lab.stop(process)
