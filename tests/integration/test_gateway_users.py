"""Requests of several users at one gateway: quotas, turns, deadlines, and what nobody may do to another's.

Each training waits until its gate is opened, so that the tests decide what is under way.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pika import exceptions

from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import RequestState
from support.broker import shared_broker, until
from support.gateway_lab import GatewayLab, gateway_lab
from support.message_exchange import Exchange, broker_users, exchange
from support.yaml_files import write_yaml

PASSWORD = "p-%s" % uuid.uuid4().hex
TRAIN = """\
echo "$OUTLAST_RUN" >> {starts}
while [ ! -e {gates}/$1 ] && [ ! -e {gates}/all ]; do sleep 0.05; done
echo "$1" > "$OUTLAST_OUTPUT_DIR/number"
"""
PARAMS = {
    "command": "sh train.sh {number}",
    "code": ["train.sh"],
    "resources": {"cpus": 1, "memory": "100MB", "disk": "100MB", "time": "10m"},
    "outputs": ["number"],
    "checkpoints": {"grace": "1s"},
}
TEMPLATE = {
    "parameters": {"number": {"type": "integer", "at_least": 0}},
    "ceilings": {"cpus": 1, "memory": "200MB", "disk": "200MB", "time": "10m", "total": "1h"},
    "answer": {"number": "number"},
}
REPLIES = "results"
#: Each test has a template of its own: one run at a time.
TEMPLATES = ("turns", "queued", "running", "cancel", "private", "gone")


@dataclass
class Lab:
    gateway: GatewayLab
    alice: Exchange
    bob: Exchange
    names: dict[str, str]

    def send(self, user: str, name: str, queue: str = "train", **changes: Any) -> None:
        """Send a request of a user under an id; `changes` are of its body."""
        properties = {"reply_to": REPLIES}
        for key in ("expiration", "reply_to"):
            properties |= {key: changes.pop(key)} if key in changes else {}
        body = {"outlast": 1, "kind": "train", **changes}
        sender = self.alice if user == "alice" else self.bob
        names = {"correlation_id": name, "message_id": name, "user_id": self.names[user]}
        sender.publish(queue, json.dumps(body).encode(), {**properties, **names})

    def answer(self, id: str, number: int = 1) -> Any:
        """Return an answer to an id; the first unless `number` says another."""
        self.alice.await_answer(id.encode(), self.gateway.log, number)
        return json.loads(self.alice.answers_to(id.encode())[number - 1].body)

    def open(self, gate: object) -> None:
        (self.gateway.lab.root / "gates" / str(gate)).touch()

    def request(self, id: str) -> RecordedRequest | None:
        with self.gateway.record() as record:
            return record.request_by_id(id.encode())

    def until_state(self, id: str, *states: RequestState) -> RecordedRequest:
        def found() -> RecordedRequest | None:
            request = self.request(id)
            return request if request is not None and request.state in states else None

        request = until(found, lambda: "%s: %s\n%s" % (id, self.request(id), self.gateway.log()))
        assert isinstance(request, RecordedRequest)
        return request

    def started(self) -> list[str]:
        starts = self.gateway.starts
        return starts.read_text().split() if starts.exists() else []

    def until_started(self, id: str) -> None:
        request = self.until_state(id, RequestState.RUNNING)
        until(lambda: request.run in self.started(), self.gateway.log)


def write_files(lab: GatewayLab) -> None:
    gates = lab.lab.root / "gates"
    gates.mkdir()
    for name in TEMPLATES:
        place = lab.directory.template(name)
        quota = {"running": 1, "waiting_per_user": 5}
        write_yaml(place / "template.yaml", {**TEMPLATE, "quota": quota})
        write_yaml(place / "params.yaml", {"name": name, **PARAMS})
        (place / "train.sh").write_text(TRAIN.format(starts=lab.starts, gates=gates), encoding="utf-8")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    names = {name: "%s-%s" % (name, uuid.uuid4().hex[:8]) for name in ("alice", "bob")}
    with (
        shared_broker().own_virtual_host() as broker,
        broker_users(broker, list(names.values()), PASSWORD),
        gateway_lab(broker, ()) as gateway,
        exchange(broker, names["alice"], PASSWORD) as alice,
        exchange(broker, names["bob"], PASSWORD) as bob,
    ):
        gateway.templates = TEMPLATES
        write_files(gateway)
        queue = {"reply_to": [REPLIES, REPLIES + ".*"]}
        gateway.write_settings(
            queues=[
                {"name": "train", "dead_letters": "train.dead", **queue},
                {"name": "private", "users": [names["alice"]], **queue},
            ],
            limits={"keep": "4s"},
        )
        alice.declare(REPLIES)
        alice.collect(REPLIES)
        gateway.up()
        until(lambda: broker.queue("train") and broker.queue("private"), gateway.log)
        yield Lab(gateway, alice, bob, names)


def test_after_many_requests_of_one_user_another_s_is_next(lab: Lab) -> None:
    for number in range(1, 9):
        lab.send("alice", "turn-%d" % number, template="turns", parameters={"number": number})
    lab.until_started("turn-1")
    for number in (6, 7, 8):
        assert lab.answer("turn-%d" % number)["code"] == "over_quota"
    lab.send("bob", "turn-b", template="turns", parameters={"number": 100})
    lab.until_state("turn-b", RequestState.ACCEPTED)
    lab.open("all")
    for id in ("turn-b", *("turn-%d" % number for number in range(1, 6))):
        assert lab.answer(id)["kind"] == "result"
    (lab.gateway.lab.root / "gates" / "all").unlink()
    ids = ("turn-1", "turn-b", "turn-2", "turn-5")
    runs = [lab.until_state(id, RequestState.ANSWERED).run for id in ids]
    assert runs == sorted(runs, key=lab.started().index)


def test_a_request_that_expires_while_it_waits_never_starts(lab: Lab) -> None:
    lab.send("alice", "wait-1", template="queued", parameters={"number": 11})
    lab.until_started("wait-1")
    lab.send("alice", "wait-2", template="queued", parameters={"number": 12}, expiration="1000")
    assert lab.answer("wait-2")["code"] == "expired"
    lab.open(11)
    assert lab.answer("wait-1")["kind"] == "result"
    request = lab.until_state("wait-2", RequestState.ANSWERED)
    assert request.submitted is None and request.run not in lab.started()


def test_a_request_that_expires_while_it_runs_ends_its_job(lab: Lab) -> None:
    lab.send("alice", "run-1", template="running", parameters={"number": 21}, expiration="6000")
    lab.until_started("run-1")
    assert lab.answer("run-1")["code"] == "expired"
    # Its place is free: the next one could not start otherwise.
    lab.send("bob", "run-2", template="running", parameters={"number": 22})
    lab.open(22)
    assert lab.answer("run-2")["kind"] == "result"
    assert not [
        job for job in lab.gateway.jobs() if "running-" in str(job) and "running-0" in str(job.get("state"))
    ]


def test_nobody_cancels_or_sees_another_s_request(lab: Lab) -> None:
    lab.send("alice", "mine", template="cancel", parameters={"number": 31})
    lab.until_started("mine")
    lab.send("bob", "not-his", kind="cancel", id="mine")
    assert lab.answer("not-his")["code"] == "forbidden"
    lab.send("bob", "not-his-either", kind="status", id="mine")
    answer = lab.answer("not-his-either")
    assert answer["code"] == "forbidden" and "state" not in answer
    lab.send("bob", "unknown", kind="cancel", id="no such id")
    assert lab.answer("unknown")["code"] == "invalid_request"
    assert lab.request("mine").cancel == ""  # type: ignore[union-attr]
    lab.open(31)
    assert lab.answer("mine")["kind"] == "result"
    lab.until_state("mine", RequestState.ANSWERED)
    lab.send("alice", "too-late", kind="cancel", id="mine")
    answer = lab.answer("too-late")
    assert (answer["kind"], answer["state"]) == ("status", "answered")
    assert len(lab.alice.answers_to(b"mine")) == 1


def test_a_user_cancels_requests_that_wait_and_that_run(lab: Lab) -> None:
    for number in (41, 42):
        lab.send("alice", "own-%d" % number, template="cancel", parameters={"number": number})
    lab.until_started("own-41")
    for number in (42, 41):
        lab.send("alice", "cancel-%d" % number, kind="cancel", id="own-%d" % number)
        assert lab.answer("cancel-%d" % number)["cancelling"] is True
        assert lab.answer("own-%d" % number)["code"] == "cancelled"
    assert lab.request("own-42").run not in lab.started()  # type: ignore[union-attr]


def test_a_queue_for_certain_users_refuses_others_and_the_broker_forged_ones(lab: Lab) -> None:
    lab.send("bob", "listed-b", "private", template="private", parameters={"number": 51})
    assert lab.answer("listed-b")["code"] == "forbidden"
    properties = {"correlation_id": "anonymous", "reply_to": REPLIES}
    body = {"outlast": 1, "kind": "train", "template": "private", "parameters": {"number": 52}}
    lab.bob.publish("private", json.dumps(body).encode(), properties)
    assert lab.answer("anonymous")["code"] == "forbidden"
    lab.open(53)
    lab.send("alice", "listed-a", "private", template="private", parameters={"number": 53})
    assert lab.answer("listed-a")["kind"] == "result"
    with (
        exchange(lab.gateway.broker, lab.names["bob"], PASSWORD) as forger,
        pytest.raises(exceptions.ChannelClosedByBroker),
    ):
        forger.publish("private", json.dumps(body).encode(), {**properties, "user_id": lab.names["alice"]})


def test_an_answer_that_nobody_takes_is_given_up_shown_and_sent_again_on_request(lab: Lab) -> None:
    lab.open(61)
    gone = REPLIES + ".gone"
    lab.send("alice", "gone", template="gone", parameters={"number": 61}, reply_to=gone)
    request = lab.until_state("gone", RequestState.UNDELIVERED)
    assert "returned" in request.note
    place = ("-C", str(lab.gateway.directory.root))
    shown = lab.gateway.outlast("gateway", "explain", str(request.number), *place)
    assert "returned" in shown.output and gone in shown.output
    results = lab.gateway.directory.experiment("gone") / "results" / request.run
    assert (results / "number").read_text() == "61\n"
    lab.alice.declare(gone)
    lab.alice.collect(gone)
    again = lab.gateway.outlast("gateway", "retry", str(request.number), *place)
    assert again.returncode == 0, again.output
    assert lab.answer("gone")["kind"] == "result"
    assert lab.until_state("gone", RequestState.ANSWERED).run in lab.started()
    assert lab.started().count(request.run) == 1
