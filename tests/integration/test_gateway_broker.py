"""The link to the broker, on a real RabbitMQ: nothing is lost, it is never deaf, it states what is wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import socketserver
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from outlast.gateway.broker.checks import FindingLevel, check_broker
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.broker.link_health import LinkHealth, QueueState
from outlast.gateway.broker.link_session import LARGEST_BODY
from outlast.gateway.broker.pauses import PauseLimits
from outlast.gateway.requests import Delivery, OutgoingMessage, PublishResult
from outlast.gateway.settings import BrokerSettings, QueueSettings
from servers.certificates import Authority, Certificate
from support import raw_amqp
from support.broker import MESSAGE_LIMIT, Broker, PrivateBroker, until
from support.raw_amqp import RawPublisher, entry, long_text, properties, table

QUEUE = "requests"
DEAD = "requests-dead"
QUEUES = (QueueSettings(QUEUE, dead_letters=DEAD),)
PAUSES = PauseLimits(0.1, 1.0)


@contextlib.contextmanager
def linked(
    settings: BrokerSettings, queues: Sequence[QueueSettings] = QUEUES, **options: Any
) -> Iterator[BrokerLink]:
    link = BrokerLink(settings, queues, pauses=PAUSES, **options)
    link.start()
    try:
        yield link
    finally:
        link.stop(10)


@contextlib.contextmanager
def working(
    settings: BrokerSettings, queues: Sequence[QueueSettings] = QUEUES, **options: Any
) -> Iterator[BrokerLink]:
    with linked(settings, queues, **options) as link:
        wait_until_well(link)
        yield link


def wait_until_well(link: BrokerLink) -> LinkHealth:
    until(lambda: link.health.is_well, lambda: "it does not work: %s" % link.health, 60)
    return link.health


def state_of(link: BrokerLink, queue: str) -> QueueState:
    return next((each.state for each in link.health.queues if each.name == queue), QueueState.WAITING)


def take(link: BrokerLink, count: int, seconds: float = 30) -> list[Delivery]:
    """Take and acknowledge deliveries."""
    taken: list[Delivery] = []

    def enough() -> bool:
        new = link.take(count - len(taken), 0.2)
        link.ack(new)
        taken.extend(new)
        return len(taken) >= count

    until(enough, "too few deliveries", seconds)
    return taken


def outcomes(link: BrokerLink, count: int, seconds: float = 30) -> dict[int, tuple[PublishResult, str]]:
    found: dict[int, tuple[PublishResult, str]] = {}

    def enough() -> bool:
        link.wait(0.2)
        found.update((each.number, (each.result, each.reason)) for each in link.outcomes())
        return len(found) >= count

    until(enough, "too few outcomes", seconds)
    return found


def answer(number: int, key: str, body: bytes = b"{}", **options: Any) -> OutgoingMessage:
    return OutgoingMessage(number, "", key, body, message_id="m%d" % number, **options)


# --- messages ---------------------------------------------------------------------------------------------


def test_a_delivery_has_the_bytes_and_properties_that_were_sent(broker: Broker, tmp_path: Path) -> None:
    with working(broker.settings(tmp_path)) as link:
        link.publish(
            OutgoingMessage(
                1, "", QUEUE, b"\x00\xff{", correlation_id=b"\xff\x00 *", message_id="a", type="t"
            )
        )
        (delivery,) = take(link, 1)
        assert outcomes(link, 1) == {1: (PublishResult.CONFIRMED, "")}
    found = delivery.properties
    assert (delivery.queue, delivery.body, delivery.size, delivery.redelivered) == (
        QUEUE,
        b"\x00\xff{",
        3,
        False,
    )
    assert (found.correlation_id, found.message_id, found.type) == (b"\xff\x00 *", b"a", b"t")
    assert found.content_type == b"application/json" and not found.damaged


def test_messages_that_kill_client_libraries_pass_and_do_not_end_the_connection(
    broker: Broker, tmp_path: Path
) -> None:
    headers = raw_amqp.HEADERS
    many = b"".join(entry(b"h%d" % number, b"I", b"\0\0\0\1") for number in range(5000))
    hostile = [
        (properties(raw_amqp.CORRELATION_ID, b"\x05\xff\xfe *\n"), False),
        (properties(headers, table(raw_amqp.nested(2000))), True),
        (properties(headers, table(raw_amqp.nested(15000))), True),
        (properties(headers, table(entry(b"t", b"T", struct.pack(">Q", 2**63 - 1)))), True),
        (properties(raw_amqp.TIMESTAMP, struct.pack(">Q", 2**64 - 1)), False),
        (properties(headers, table(many)), False),
        (properties(headers, table(entry(b"k", b"I", b"\0\0\0\1") * 2)), False),
        (properties(headers, table(entry(b"d", b"D", b"\xff\x7f\xff\xff\xff"))), False),
        (properties(headers, table(entry(b"x-death", b"S", long_text(b"expired")))), False),
    ]
    with working(broker.settings(tmp_path)) as link:
        since = link.health.connected_since
        with RawPublisher(broker) as publisher:
            for number, (sent, _) in enumerate(hostile):
                publisher.publish(QUEUE, sent, b"hostile %d" % number)
                publisher.publish(QUEUE, properties(0), b"good")
        taken = take(link, 2 * len(hostile))
        assert link.health.connected_since == since
    assert [each.body for each in taken[1::2]] == [b"good"] * len(hostile)
    assert [each.properties.damaged for each in taken[::2]] == [damaged for _, damaged in hostile]
    assert not any(each.redelivered for each in taken)
    assert taken[0].properties.correlation_id == b"\xff\xfe *\n"
    assert taken[8].properties.timestamp == 2**64 - 1


def test_only_the_beginning_of_a_large_body_is_kept(broker: Broker, tmp_path: Path) -> None:
    with working(broker.settings(tmp_path)) as link:
        link.publish(answer(1, QUEUE, b"[]," * 1_000_000))
        link.publish(answer(2, QUEUE, b"next"))
        large, after = take(link, 2)
    assert (large.size, large.body) == (3_000_000, (b"[]," * 1_000_000)[:LARGEST_BODY])
    assert (after.size, after.body) == (4, b"next")


def test_what_expired_is_delivered_from_the_dead_letters_and_nobody_can_forge_that(
    broker: Broker, tmp_path: Path
) -> None:
    with working(broker.settings(tmp_path)):
        pass  # creates the queues
    broker.publish(QUEUE, b"old", expiration="1", correlation_id="c")
    until(lambda: broker.api("GET", "queues/%s/%s" % (broker.virtual_host, DEAD)), "no dead letters")
    forged = entry(b"reason", b"S", long_text(b"expired")) + entry(
        b"original-expiration", b"S", long_text(b"5")
    )
    death = entry(b"x-death", b"A", long_text(b"F" + table(forged)))
    with RawPublisher(broker) as publisher:
        publisher.publish(QUEUE, properties(raw_amqp.HEADERS, table(death)), b"forged")
    with working(broker.settings(tmp_path)) as link:
        taken = {each.body: each for each in take(link, 2)}
    assert taken[b"old"].queue == DEAD
    assert taken[b"old"].properties.death == "expired"
    assert taken[b"old"].properties.original_expiration == b"1"
    assert taken[b"old"].properties.correlation_id == b"c"
    assert taken[b"forged"].queue == QUEUE
    assert taken[b"forged"].properties.death == ""
    assert taken[b"forged"].properties.original_expiration is None


def test_what_is_not_acknowledged_is_delivered_again_and_what_is_acknowledged_is_not(
    broker: Broker, tmp_path: Path
) -> None:
    settings = broker.settings(tmp_path)
    with working(settings, prefetch=3) as link:
        for number in range(5):
            broker.publish(QUEUE, b"%d" % number)
        first = link.take(5, 10)
        until(lambda: first.extend(link.take(5, 0.1)) or len(first) >= 3, "too few")
        assert [each.body for each in first] == [b"0", b"1", b"2"]  # the prefetch
        link.ack(first[:2])
        link.ack(first[:2])  # again: no error of the channel
        assert [each.body for each in take(link, 2)] == [b"3", b"4"]
        assert state_of(link, QUEUE) is QueueState.CONSUMED
    with working(settings) as link:
        link.ack(first)  # of an earlier channel: ignored
        (again,) = take(link, 1)
    assert (again.body, again.redelivered) == (b"2", True)


# --- queues -----------------------------------------------------------------------------------------------


def test_missing_queues_are_created_as_each_dialect_needs_them_and_existing_ones_are_left(
    broker: Broker, tmp_path: Path
) -> None:
    broker.declare_queue("old", durable=True, arguments={"x-max-length": 7})
    queues = (
        *QUEUES,
        QueueSettings("hpc-jobs", dialect="rodan"),
        QueueSettings("old", dialect="rodan"),
        QueueSettings("elsewhere", declare=False),
    )
    with linked(broker.settings(tmp_path), queues) as link:
        until(lambda: state_of(link, "elsewhere") is QueueState.MISSING, "not missing")
        until(lambda: state_of(link, "old") is QueueState.CONSUMED, "not consumed")
        until(lambda: state_of(link, QUEUE) is QueueState.CONSUMED, "not consumed")
        until(lambda: state_of(link, "hpc-jobs") is QueueState.CONSUMED, "not consumed")
        assert not link.health.is_well
        own, rodan, old = (broker.queue(name) for name in (QUEUE, "hpc-jobs", "old"))
        assert broker.queue("elsewhere") is None
        broker.declare_queue("elsewhere")
        wait_until_well(link)
    assert own and own["type"] == "quorum" and own["durable"]
    assert own["arguments"] == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 20,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert rodan and (rodan["type"], rodan["durable"], rodan["exclusive"]) == ("classic", False, False)
    assert rodan["arguments"] == {} and not rodan["auto_delete"]
    assert old and old["arguments"] == {"x-max-length": 7}


def test_a_queue_that_is_deleted_under_the_consumer_is_consumed_again(broker: Broker, tmp_path: Path) -> None:
    queues = (QueueSettings("created"), QueueSettings("found", declare=False))
    broker.declare_queue("found")
    with working(broker.settings(tmp_path), queues) as link:
        since = link.health.connected_since
        before = {each.name: each.since for each in link.health.queues}
        broker.delete_queue("created")
        until(lambda: broker.queue("created"), "it was not created again")
        broker.delete_queue("found")
        until(lambda: state_of(link, "found") is QueueState.MISSING, "the loss is not reported")
        broker.declare_queue("found")
        health = wait_until_well(link)
        assert health.connected_since == since
        assert all(each.since > before[each.name] for each in health.queues)
        broker.publish("created", b"1")
        broker.publish("found", b"2")
        assert {each.body for each in take(link, 2)} == {b"1", b"2"}


def test_a_queue_that_may_not_be_read_is_reported_and_the_others_are_consumed(
    broker: Broker, tmp_path: Path
) -> None:
    broker.declare_queue("secret")
    broker.declare_queue("open")
    broker.permit("reader", read="open")
    queues = (QueueSettings("secret"), QueueSettings("open"), QueueSettings("absent"))
    with linked(broker.settings(tmp_path, "reader"), queues) as link:
        until(lambda: state_of(link, "open") is QueueState.CONSUMED, "the other queue is not consumed")
        for name in ("secret", "absent"):
            until(lambda name=name: state_of(link, name) is QueueState.REFUSED, "the refusal is not reported")
        reasons = {each.name: each.reason for each in link.health.queues}
        assert "ACCESS_REFUSED" in reasons["secret"] and "ACCESS_REFUSED" in reasons["absent"]
        broker.permit("reader", read=".*")
        until(lambda: state_of(link, "secret") is QueueState.CONSUMED, "it does not go on")


# --- publishing -------------------------------------------------------------------------------------------


def test_every_publication_has_its_own_outcome(fragile_broker: PrivateBroker, tmp_path: Path) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with fragile_broker.own_virtual_host() as broker, working(broker.settings(tmp_path)) as link:
        broker.declare_queue("replies")
        broker.declare_queue("full", arguments=full)
        broker.publish("full")
        assert link.health.message_limit == 128 * 2**20  # the default of this version
        link.publish(answer(1, "replies"))
        link.publish(answer(2, "nowhere"))
        link.publish(answer(3, "full"))
        link.publish(answer(4, "replies", bytes(MESSAGE_LIMIT + 1)))
        link.publish(answer(5, "replies"))
        link.publish(dataclasses.replace(answer(6, "replies"), exchange="nothing"))
        link.publish(answer(7, "nowhere", mandatory=False))
        found = outcomes(link, 7)
        # What was on its way beside the refused one is unknown, and may be sent again.
        while unknown := [number for number, (result, _) in found.items() if result is PublishResult.UNKNOWN]:
            assert set(unknown) <= {1, 2, 3, 5, 6}
            for number in unknown:
                again = {
                    3: answer(3, "full"),
                    2: answer(2, "nowhere"),
                    6: OutgoingMessage(6, "nothing", "x", b""),
                }
                link.publish(again.get(number, answer(number, "replies")))
            found |= outcomes(link, len(unknown))
        assert {number: result for number, (result, _) in found.items()} == {
            1: PublishResult.CONFIRMED,
            2: PublishResult.RETURNED,
            3: PublishResult.NACKED,
            4: PublishResult.TOO_LARGE,
            5: PublishResult.CONFIRMED,
            6: PublishResult.REFUSED,
            7: PublishResult.CONFIRMED,
        }
        assert link.health.message_limit == MESSAGE_LIMIT
        # It is not sent a second time.
        link.publish(answer(8, "replies", bytes(MESSAGE_LIMIT + 1)))
        link.publish(answer(9, "replies", bytes(MESSAGE_LIMIT)))
        found = outcomes(link, 2)
        assert (found[8][0], found[9][0]) == (PublishResult.TOO_LARGE, PublishResult.CONFIRMED)


def test_one_bad_publication_does_not_make_the_others_unknown_twice(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue("replies")
    publications = [answer(number, "replies") for number in range(40)]
    publications[20] = dataclasses.replace(publications[20], exchange="nothing")
    with working(broker.settings(tmp_path)) as link:
        for publication in publications:
            link.publish(publication)
        first = outcomes(link, 40)
        unknown = [number for number, (result, _) in first.items() if result is PublishResult.UNKNOWN]
        assert 20 in unknown and len(unknown) > 1
        for number in unknown:
            link.publish(publications[number])
        second = {number: result for number, (result, _) in outcomes(link, len(unknown)).items()}
    assert second.pop(20) is PublishResult.REFUSED
    assert set(second.values()) == {PublishResult.CONFIRMED}


def test_returned_answers_are_told_apart_from_those_that_arrive(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue("replies")
    with working(broker.settings(tmp_path)) as link:
        for number in range(200):
            link.publish(answer(number, "replies" if number % 3 else "nowhere-%d" % (number % 2)))
        found = outcomes(link, 200)
    assert all(
        result is (PublishResult.CONFIRMED if number % 3 else PublishResult.RETURNED)
        for number, (result, _) in found.items()
    )
    assert len(broker.get("replies")) == sum(bool(number % 3) for number in range(200))


def test_a_user_who_may_not_publish_is_reported(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue(QUEUE)
    broker.permit("reader", read=".*")
    queues = (QueueSettings(QUEUE),)
    with linked(broker.settings(tmp_path, "reader"), queues, progress_exchange="progress") as link:
        until(lambda: link.health.progress, "the missing exchange is not reported")
        assert "ACCESS_REFUSED" in link.health.progress
        link.publish(answer(1, QUEUE))
        link.publish(OutgoingMessage(2, "progress", "a.b", b"", mandatory=False))
        found = outcomes(link, 2)
        assert [found[number][0] for number in (1, 2)] == [PublishResult.REFUSED] * 2
        assert all("ACCESS_REFUSED" in found[number][1] for number in (1, 2))


def test_progress_goes_to_a_topic_exchange_and_nobody_needs_to_listen(broker: Broker, tmp_path: Path) -> None:
    with working(broker.settings(tmp_path), progress_exchange="progress") as link:
        made = broker.api("GET", "exchanges/%s/progress" % broker.virtual_host)
        assert (made["type"], made["durable"]) == ("topic", True)
        link.publish(
            OutgoingMessage(1, "progress", "request.1.queued", b"{}", persistent=False, mandatory=False)
        )
        assert outcomes(link, 1) == {1: (PublishResult.CONFIRMED, "")}


# --- checks -----------------------------------------------------------------------------------------------


def test_the_check_finds_what_will_not_work_and_changes_nothing(broker: Broker, tmp_path: Path) -> None:
    broker.declare_queue("hpc-jobs", durable=True)
    broker.declare_queue("classic", durable=True)
    broker.publish("classic", b"1")
    queues = (
        QueueSettings("hpc-jobs", dialect="rodan"),
        QueueSettings("classic"),
        QueueSettings("new", dead_letters="new-dead"),
        QueueSettings("foreign", declare=False),
    )
    before = sorted(each["name"] for each in broker.api("GET", "queues/" + broker.virtual_host))

    found = check_broker(broker.settings(tmp_path), queues, "progress")
    assert [(each.level.value, each.subject) for each in found] == [
        ("ok", "broker"),
        ("ok", "encryption"),
        ("ok", "message limit"),
        ("ok", "answers"),
        ("warning", "queue classic"),  # no dead letters
        ("warning", "queue foreign"),
        ("ok", "queue new-dead"),
        ("ok", "queue hpc-jobs"),
        ("error", "queue hpc-jobs"),
        ("ok", "queue classic"),
        ("warning", "queue classic"),
        ("ok", "queue new"),
        ("error", "queue foreign"),
        ("ok", "exchange progress"),
    ]
    texts = [each.text for each in found]
    assert "3.10" in texts[0] and "128 MiB" in texts[2]
    assert "durable" in texts[8] and "x-queue-type" in texts[10] and "does not exist" in texts[12]

    broker.permit("reader", read="classic")
    found = check_broker(broker.settings(tmp_path, "reader"), queues, "progress")
    errors = {each.subject: each.text for each in found if each.level is FindingLevel.ERROR}
    assert sorted(errors) == [
        *("answers", "queue foreign", "queue hpc-jobs", "queue new", "queue new-dead"),
    ]
    assert "may not publish" in errors["answers"] and "may not create" in errors["queue new"]
    assert "may not read" in errors["queue hpc-jobs"]

    after = sorted(each["name"] for each in broker.api("GET", "queues/" + broker.virtual_host))
    assert after == before
    (message,) = broker.get("classic")
    assert message["redelivered"] is False


def test_the_check_says_why_there_is_no_connection(broker: Broker, tmp_path: Path) -> None:
    (finding,) = check_broker(broker.settings(tmp_path, port=9), QUEUES)
    assert finding.level is FindingLevel.ERROR and "cannot be reached" in finding.text
    settings = broker.settings(tmp_path)
    assert settings.credentials is not None
    settings.credentials.chmod(0o644)
    (finding,) = check_broker(settings, QUEUES)
    assert finding.level is FindingLevel.ERROR and "chmod 600" in finding.text


# --- connections ------------------------------------------------------------------------------------------


def test_nothing_is_lost_when_the_broker_is_killed_and_restarted(
    fragile_broker: PrivateBroker, tmp_path: Path
) -> None:
    sent, confirmed = 0, set[int]()
    settings = fragile_broker.settings(tmp_path)
    with working(settings) as link:
        seen: set[bytes] = set()

        def move() -> None:
            nonlocal sent
            for _ in range(min(link.room, 50)):
                link.publish(answer(sent, QUEUE, b"%d" % sent))
                sent += 1
            link.wait(0.05)
            deliveries = link.take(100, 0)
            seen.update(each.body for each in deliveries)
            link.ack(deliveries)
            confirmed.update(
                each.number for each in link.outcomes() if each.result is PublishResult.CONFIRMED
            )

        until(lambda: move() or len(confirmed) > 200, "nothing is confirmed")
        fragile_broker.kill()
        until(lambda: move() or link.health.down_since, "the loss is not reported")
        assert link.room == 0
        until(lambda: link.health.failures >= 2, "it does not try again")
        assert "cannot be reached" in link.health.reason or "lost" in link.health.reason
        fragile_broker.start()
        wait_until_well(link)
        more = len(confirmed) + 100
        until(lambda: move() or len(confirmed) > more, "nothing is confirmed after the restart")
        missing = {b"%d" % number for number in confirmed} - seen
        until(lambda: move() or {b"%d" % number for number in confirmed} <= seen, "lost: %r" % missing)


def test_connections_that_an_operator_closes_are_made_again(broker: Broker, tmp_path: Path) -> None:
    with working(broker.settings(tmp_path)) as link:
        since = link.health.connected_since

        def connections() -> list[str]:
            found = broker.api("GET", "vhosts/%s/connections" % broker.virtual_host)
            return [each["name"] for each in found if each.get("client_properties")]

        for name in until(
            lambda: len(found := connections()) == 2 and found, "the connections are not listed"
        ):
            broker.api("DELETE", "connections/" + quote(name))
        until(lambda: link.health.connected_since not in (None, since), "no new connection")
        assert "CONNECTION_FORCED" in link.health.reason
        wait_until_well(link)
        broker.publish(QUEUE, b"1")
        assert take(link, 1)[0].body == b"1"


def test_a_channel_that_the_broker_closes_is_opened_again(broker: Broker, tmp_path: Path) -> None:
    with working(broker.settings(tmp_path)) as link:
        before = link.health
        broker.publish(QUEUE, b"1")
        until(lambda: link.wait(1), "no delivery")
        session: Any = link._session
        # As after a time-out of acknowledgements: 406, for this channel only.
        session._loop.call_soon(lambda: session._consumers[QUEUE]._channel.ack(12345))
        until(lambda: state_of(link, QUEUE) is QueueState.REFUSED, "it is not reported")
        assert "unknown delivery tag" in link.health.queues[1].reason
        assert wait_until_well(link).connected_since == before.connected_since
        (again,) = link.take(5, 10)  # what was not taken of the old channel is not there twice
        assert (again.body, again.redelivered) == (b"1", True)


def test_a_mistake_in_the_link_is_reported_and_it_begins_anew(broker: Broker, tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a mistake")

    with working(broker.settings(tmp_path)) as link:
        session: Any = link._session
        reasons = set()
        set_health = link.set_health
        link.set_health = lambda health: (reasons.add(health.reason), set_health(health))  # type: ignore
        session._loop.call_soon(fail)
        link.publish(answer(1, QUEUE))
        assert outcomes(link, 1)[1][0] in (PublishResult.UNKNOWN, PublishResult.CONFIRMED)
        until(lambda: link._session not in (None, session), "it does not begin anew")
        assert "internal error: ZeroDivisionError: a mistake" in reasons
        wait_until_well(link)
        link.publish(answer(2, QUEUE, b"afterwards"))
        assert outcomes(link, 1)[2][0] is PublishResult.CONFIRMED
        until(lambda: b"afterwards" in {each.body for each in take(link, 1)}, "it is deaf")


def test_a_frozen_broker_is_noticed_and_it_goes_on_by_itself(
    fragile_broker: PrivateBroker, tmp_path: Path
) -> None:
    settings = fragile_broker.settings(tmp_path, heartbeat=2, connect_timeout=2.0)
    with working(settings) as link:
        fragile_broker.freeze()
        link.publish(answer(1, QUEUE, b"while it is frozen"))
        # The kernel accepts connections for a frozen process: attempts must end, too.
        until(lambda: link.health.down_since and link.health.failures >= 2, "it is not noticed")
        assert "did not answer" in link.health.reason or "silent" in link.health.reason
        assert outcomes(link, 1)[1][0] is PublishResult.UNKNOWN
        fragile_broker.thaw()
        wait_until_well(link)
        link.publish(answer(2, QUEUE, b"afterwards"))
        until(lambda: b"afterwards" in {each.body for each in take(link, 1)}, "it is deaf")


def test_during_an_alarm_acknowledgements_arrive_and_publications_wait(
    fragile_broker: PrivateBroker, tmp_path: Path
) -> None:
    with fragile_broker.own_virtual_host() as broker, working(broker.settings(tmp_path)) as link:
        broker.declare_queue("replies")
        broker.publish(QUEUE, b"1")
        (delivery,) = link.take(1, 10)
        fragile_broker.set_alarm(True)
        try:
            link.publish(answer(1, "replies"))  # the broker reports an alarm only to those who publish
            until(lambda: link.health.blocked, "the alarm is not reported")
            assert link.health.blocked_since and link.room == 0 and not link.health.is_well
            link.publish(answer(2, "replies"))
            link.ack([delivery])
            unacked = "queues/%s/%s" % (broker.virtual_host, QUEUE)
            until(lambda: broker.api("GET", unacked).get("messages") == 0, "the ack did not arrive")
            assert link.outcomes() == []
            found = check_broker(broker.settings(tmp_path), ())
            assert [each.subject for each in found if each.level is FindingLevel.ERROR] == ["alarm"]
        finally:
            fragile_broker.set_alarm(False)
        assert {result for result, _ in outcomes(link, 2).values()} == {PublishResult.CONFIRMED}
        until(lambda: link.health.is_well and link.room, "it does not go on")


def test_the_link_stops_in_time_although_the_broker_is_frozen(
    fragile_broker: PrivateBroker, tmp_path: Path
) -> None:
    link = BrokerLink(fragile_broker.settings(tmp_path), QUEUES, pauses=PAUSES)
    link.start()
    wait_until_well(link)
    fragile_broker.freeze()
    link.publish(answer(1, QUEUE))
    begin = time.monotonic()
    link.stop(2)
    assert time.monotonic() - begin < 60
    assert [each.result for each in link.outcomes()] == [PublishResult.UNKNOWN]
    assert link.health.connected_since is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"port": 9}, "cannot be reached"),
        ({"virtual_host": "nowhere"}, "the virtual host nowhere"),
        ({"tls": True}, "TLS"),
    ],
)
def test_a_connection_that_cannot_be_made_is_explained(
    broker: Broker, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with linked(broker.settings(tmp_path, **changes)) as link:
        until(lambda: link.health.failures >= 2, "it does not try again")
        assert reason in link.health.reason


def test_a_wrong_password_is_reported_and_is_in_no_text(broker: Broker, tmp_path: Path) -> None:
    settings = broker.settings(tmp_path)
    assert settings.credentials is not None
    settings.credentials.write_text("user: test\npassword: hunter2hunter2\n")
    with linked(settings) as link:
        until(lambda: link.health.failures >= 2, "it does not try again")
        assert "refused the user or the password" in link.health.reason
        assert "hunter2" not in repr(link.health)
        # The file is read at each attempt.
        broker.settings(tmp_path)
        wait_until_well(link)


def test_a_file_of_credentials_that_others_can_read_is_refused(broker: Broker, tmp_path: Path) -> None:
    settings = broker.settings(tmp_path)
    assert settings.credentials is not None
    settings.credentials.chmod(0o640)
    with linked(settings) as link:
        until(lambda: link.health.failures >= 1, "it is not refused")
        assert "chmod 600" in link.health.reason
        settings.credentials.chmod(0o600)
        wait_until_well(link)


def test_tls_needs_a_certificate_that_is_trusted_and_has_the_right_name(
    broker: Broker, tmp_path: Path, authority: Authority
) -> None:
    tls = {"port": broker.tls_port, "tls": True}
    with working(broker.settings(tmp_path, ca_file=broker.ca_file, **tls)) as link:
        link.publish(answer(1, QUEUE, bytes(300_000)))
        assert take(link, 1)[0].size == 300_000
    with linked(broker.settings(tmp_path, ca_file=authority.bundle, **tls)) as link:
        until(lambda: link.health.failures >= 1, "an unknown authority is trusted")
        assert "is not trusted" in link.health.reason
    other = authority.issue("other", hosts=("broker.example.org",))
    with tls_server(other) as port:
        settings = broker.settings(tmp_path, port=port, tls=True, ca_file=authority.bundle)
        with linked(settings) as link:
            until(lambda: link.health.failures >= 1, "a wrong name is trusted")
            assert "is not trusted" in link.health.reason and "localhost" in link.health.reason


@contextlib.contextmanager
def tls_server(certificate: Certificate) -> Iterator[int]:
    """Yield the port of a server that ends every connection after its handshake."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # The client refuses the certificate, which is an error here.
            with contextlib.suppress(OSError):
                certificate.server_context().wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(10)
