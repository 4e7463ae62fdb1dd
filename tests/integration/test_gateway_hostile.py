"""Hostile messages among good ones, through a whole gateway on a real broker that is killed in the middle.

Every good request has its result, every hostile one the refusal of the table, or is put aside; whatever they
had in them is in no terminal, and no secret of the site is in a file, an argument or an environment.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.cli import group
from servers import application as web
from servers.application import LOGIN, ApplicationServer
from servers.certificates import Authority
from support import raw_amqp
from support.broker import shared_broker, until
from support.gateway_lab import GatewayLab, gateway_lab
from support.hostile_messages import (
    QUARANTINED,
    SERVED,
    Message,
    Site,
    good_message,
    hostile_messages,
    refused,
)
from support.message_exchange import Arrived, Exchange, broker_users, exchange
from support.raw_amqp import RawPublisher, entry, properties, table
from support.yaml_files import write_yaml

PATIENCE = 150.0
GOOD = 40
#: The most memory that a gateway may ever have had, whatever was sent to it: twice what it needs.
MOST_MEMORY_MB = 250
TOKEN = "9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b"
#: Control characters, and those that turn text around.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SHELL = "$(touch owned) `id` ; rm -rf {epochs} ${HOME} %s \\n | x > y 'a' \"b\""

#: The title is in the answer as it came, and each start is in a file.
TRAIN = """\
echo "$OUTLAST_RUN $OUTLAST_TOKEN" >> {starts}
printf '%s' "$2" > "$OUTLAST_OUTPUT_DIR/title"
echo "$1" > "$OUTLAST_OUTPUT_DIR/epochs"
"""
PARAMS = {
    "command": "sh train.sh {epochs} {title}",
    "code": ["train.sh"],
    "resources": {"cpus": 1, "memory": "100MB", "disk": "100MB", "time": "10m"},
    "outputs": ["epochs", "title"],
    "checkpoints": {"grace": "1s"},
}
CEILINGS = {"cpus": 4, "memory": "300GB", "disk": "1GB", "time": "24h", "total": "2d"}
OWN = {
    "parameters": {
        "epochs": {"type": "integer", "at_least": 1, "at_most": 99},
        "title": {"type": "text", "default": "none", "longest": 200},
    },
    "ceilings": CEILINGS,
    "answer": {"epochs": "epochs", "title": "title"},
}
_NUMBERS = ("epochs", "samples", "patch_height", "patch_width")
_IMAGES = ("image", "background", "selected_regions", *("layer_%d" % number for number in range(10)))
SITE = Site("train", "results", inputs={}, template="own")


@dataclass
class Lab:
    """A gateway that serves both dialects, an application, and a connection to the broker."""

    gateway: GatewayLab
    application: ApplicationServer
    exchange: Exchange
    password: str
    signature: str

    @property
    def secrets(self) -> Mapping[str, str]:
        return {
            "password of the broker": self.password,
            "token": TOKEN,
            "password of the application": web.PASSWORD,
            "signature": self.signature,
        }

    def send(self, message: Message) -> None:
        queue = SITE.rodan_queue if message.dialect == "rodan" else SITE.queue
        self.exchange.publish(queue, message.body, message.properties)


def write_templates(lab: GatewayLab, application: ApplicationServer) -> None:
    host = "127.0.0.1:%d" % application.port
    for name in ("own", "rodan"):
        place = lab.directory.template(name)
        place.mkdir(parents=True)
        (place / "train.sh").write_text(TRAIN.format(starts=lab.starts), encoding="utf-8")
    own = {**OWN, "uploads": {"hosts": [host]}}
    write_yaml(lab.directory.template("own") / "template.yaml", own)
    write_yaml(lab.directory.template("own") / "params.yaml", {"name": "own", **PARAMS})
    images = {
        name: {"to": name, "required": "yes" if name in _IMAGES[:4] else "no", "private_hosts": [host]}
        for name in _IMAGES
    }
    rodan = {
        "parameters": {name: {"type": "integer", "at_least": 1, "default": 1} for name in _NUMBERS},
        "inputs": images,
        "ceilings": CEILINGS,
        "answer": {"Background Model": "epochs", "Model 0": "title"},
    }
    command = "sh train.sh {epochs} {samples} {patch_height} {patch_width}"
    write_yaml(lab.directory.template("rodan") / "template.yaml", rodan)
    params = {"name": "rodan", **PARAMS, "command": command}
    write_yaml(lab.directory.template("rodan") / "params.yaml", params)


def write_settings(
    lab: GatewayLab, application: ApplicationServer, certificates: Path, user: str, password: str
) -> None:
    credentials = lab.directory.credentials
    for name, text in {
        "broker.yaml": "user: %s\npassword: %s\n" % (user, password),
        "application.yaml": "username: %s\nemail: %s\npassword: %s\n"
        % (web.USERNAME, web.EMAIL, web.PASSWORD),
    }.items():
        (credentials / name).touch(0o600)
        (credentials / name).write_text(text)
    lab.write_settings(
        broker={
            "host": "127.0.0.1",
            "port": lab.broker.port,
            "virtual_host": lab.broker.virtual_host,
            "credentials": "credentials/broker.yaml",
            "heartbeat": "5s",
        },
        queues=[
            {"name": SITE.queue, "reply_to": [SITE.replies], "dead_letters": "train.dead"},
            {
                "name": SITE.rodan_queue,
                "dialect": "rodan",
                "template": "rodan",
                "reply_to": [SITE.rodan_replies],
            },
        ],
        application={
            "url": application.url("").rstrip("/"),
            "login": LOGIN,
            "credentials": "credentials/application.yaml",
            "ca_file": str(certificates),
        },
        progress="progress",
    )


@pytest.fixture(scope="module")
def lab(authority: Authority) -> Iterator[Lab]:
    password, user = "pw-%s" % uuid.uuid4().hex, "gateway-%s" % uuid.uuid4().hex[:8]
    pages = dict.fromkeys(SITE.rodan_inputs.values(), b"a page")
    with (
        shared_broker().own_virtual_host() as broker,
        broker_users(broker, [user], password),
        ApplicationServer(pages, authority.issue("gateway"), token=TOKEN) as application,
        gateway_lab(broker, ()) as gateway,
        exchange(broker) as messages,
    ):
        gateway.templates = ("own", "rodan")
        write_settings(gateway, application, authority.bundle, user, password)
        write_templates(gateway, application)
        broker.api("PUT", "exchanges/%s/progress" % broker.virtual_host, {"type": "topic", "durable": True})
        messages.declare(SITE.replies)
        messages.declare(SITE.rodan_replies, durable=False)
        messages.collect(SITE.replies, SITE.rodan_replies)
        messages.allow_direct_replies()
        signed = application.presigned("/store/title")
        yield Lab(gateway, application, messages, password, signed.rpartition("=")[2])


def more_messages(lab: Lab) -> list[Message]:
    """Return messages beyond the table."""
    upload = SITE.request(uploads={"title": lab.application.presigned("/store/title")})
    anywhere = SITE.request(uploads={"title": lab.application.url("/api/users/1/")})
    rows = [
        Message("shell", json.dumps(SITE.request(parameters={"epochs": 1, "title": SHELL})).encode(), SERVED),
        Message("upload", json.dumps(upload).encode(), SERVED),
        Message("upload-anywhere", json.dumps(anywhere).encode(), refused("invalid_request")),
        *(
            Message(
                "reply-to-%s" % queue, json.dumps(SITE.request()).encode(), QUARANTINED, {"reply_to": queue}
            )
            for queue in ("train.dead", SITE.rodan_queue, SITE.rodan_replies)
        ),
    ]
    usual = {"reply_to": SITE.replies}
    return [
        replace(row, properties={"correlation_id": row.name.encode(), **usual, **row.properties})
        for row in rows
    ]


#: Properties that a client library cannot write, and whether the message is put aside.
RAW: Mapping[str, tuple[bytes, bool]] = {
    "25-2000": (raw_amqp.nested(2000), True),
    "25-15000": (raw_amqp.nested(15000), True),
    "26-header-time": (entry(b"t", b"T", struct.pack(">Q", 2**63 - 1)), True),
    "27-twice": (entry(b"k", b"I", b"\0\0\0\1") * 2, False),
    "27-decimal": (entry(b"d", b"D", b"\xff\x7f\xff\xff\xff"), False),
    "27-forged-death": (entry(b"x-death", b"S", raw_amqp.long_text(b"expired")), False),
}


def publish_raw(lab: Lab) -> None:
    flags = raw_amqp.HEADERS | raw_amqp.CORRELATION_ID | raw_amqp.REPLY_TO
    with RawPublisher(lab.gateway.broker) as publisher:
        for name, (headers, _) in RAW.items():
            values = (table(headers), raw_amqp.text(name.encode()), raw_amqp.text(SITE.replies.encode()))
            publisher.publish(SITE.queue, properties(flags, *values), json.dumps(SITE.request()).encode())
    lab.exchange.sent[SITE.queue] += len(RAW)


def shuffled(rows: Sequence[Message], chance: random.Random) -> list[Message]:
    """Return the messages in any order in which those that need another one before come after it."""
    order = list(rows)
    chance.shuffle(order)
    place = {row.name: number for number, row in enumerate(order)}
    return sorted(order, key=lambda row: max(place[row.name], place.get(row.after, -1) + 0.5))


def outcome_of(answer: Arrived) -> str:
    """Return `served` or `refused:CODE`."""
    content = json.loads(answer.body)
    if answer.queue == SITE.rodan_replies:
        code = re.search(r"Error code: (\w+)\.", content.get("error", ""))
        assert bool(code) is ("error" in content), content
        if code is None:
            assert set(content) == {"Background Model", "Model 0"}
            assert base64.decodebytes(content["Background Model"].encode()) == b"15\n"
        return refused(code[1]) if code else SERVED
    content = content["data"] if "specversion" in content else content
    if content["kind"] == "failure":
        return refused(content["code"])
    assert content["kind"] == "result", content
    return SERVED


def title_of(answer: Arrived) -> str:
    files = {one["name"]: one for one in json.loads(answer.body)["files"]}
    return base64.b64decode(files["title"]["content_base64"]).decode()


def secrets_in_processes(lab: Lab) -> list[str]:
    """Return where a secret is in the arguments or the environment of a process of this laboratory."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        for part in ("cmdline", "environ"):
            try:
                content = (process / part).read_bytes()
            except OSError:
                continue  # it has ended
            if str(lab.gateway.lab.root).encode() in content:
                found += [
                    "the %s in the %s of a process" % (name, part)
                    for name, secret in lab.secrets.items()
                    if secret.encode() in content
                ]
    return found


def memory_of(pid: int) -> float:
    """Return the most memory that a process has had, in MB."""
    status = Path("/proc/%d/status" % pid).read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) / 1024


@pytest.fixture(scope="module")
def served(lab: Lab) -> list[Message]:
    """All of them, sent and answered."""
    seed = int(os.environ.get("OUTLAST_HOSTILE_SEED", random.randrange(10**9)))
    print("OUTLAST_HOSTILE_SEED=%d" % seed)
    chance = random.Random(seed)
    dialects = ("outlast", "rodan")
    good = [good_message(SITE, number, dialects[number % 2]) for number in range(GOOD)]
    hostile = [row for row in hostile_messages(SITE) if row.sendable] + more_messages(lab)
    rows = shuffled([*good, *hostile], chance)
    gateway = lab.gateway
    first = gateway.up()
    until(lambda: all(gateway.broker.queue(name) for name in (SITE.queue, SITE.rodan_queue)), gateway.log)
    for row in rows[: len(rows) // 2]:
        lab.send(row)
    publish_raw(lab)
    lab.exchange.until(lambda: len(lab.exchange.arrived) > len(rows) // 4, gateway.log, PATIENCE)
    assert memory_of(first.pid) < MOST_MEMORY_MB
    assert not secrets_in_processes(lab)
    gateway.kill(first)
    for row in rows[len(rows) // 2 :]:
        lab.send(row)
    second = gateway.up()
    wanted = {row.properties.get("correlation_id") for row in rows if has_answer(row)}
    wanted |= {name.encode() for name, (_, aside) in RAW.items() if not aside}

    def missing() -> set[Any]:
        return wanted - {one.correlation for one in lab.exchange.arrived}

    def recorded() -> str:
        """Return what the record has of the messages that are not answered."""
        with gateway.record() as record:
            rows = record.query(
                "SELECT number, properties, redelivered, state, reason FROM messages"
            ).fetchall()
        return "\n".join(
            str(row) for row in rows if any((one or b"?").decode("latin-1") in row[1] for one in missing())
        )

    lab.exchange.until(
        lambda: not missing(),
        lambda: "unanswered: %s\nrecorded: %s\n%s" % (missing(), recorded(), gateway.log()),
        PATIENCE,
    )
    assert not secrets_in_processes(lab)
    gateway.until_all_answered(PATIENCE)
    assert memory_of(second.pid) < MOST_MEMORY_MB
    return rows


def has_answer(row: Message) -> bool:
    return row.expected != QUARANTINED and "reply_to" in row.properties


def test_every_good_request_has_its_result(lab: Lab, served: list[Message]) -> None:
    good = [row for row in served if row.name.startswith("good-")]
    assert len(good) == GOOD
    for row in good:
        answers = lab.exchange.answers_to(row.properties["correlation_id"])
        assert {outcome_of(one) for one in answers} == {SERVED}, row.name
        assert len({one.body for one in answers}) == 1


def test_every_hostile_message_is_answered_as_the_table_says(lab: Lab, served: list[Message]) -> None:
    expected: dict[Any, set[str]] = {}
    for row in served:
        if has_answer(row):
            expected.setdefault(row.properties.get("correlation_id"), set()).add(row.expected)
    found = {
        correlation: {outcome_of(one) for one in lab.exchange.answers_to(correlation)}
        for correlation in expected
    }
    assert found == expected
    for name, (_, aside) in RAW.items():
        answers = lab.exchange.answers_to(name.encode())
        assert {outcome_of(one) for one in answers} == (set() if aside else {SERVED}), name


def test_what_cannot_be_answered_is_put_aside_and_nothing_loops(lab: Lab, served: list[Message]) -> None:
    aside = sum(row.expected == QUARANTINED for row in served) + sum(aside for _, aside in RAW.values())
    with lab.gateway.record() as record:
        assert record.count_quarantined() == aside
        taken = dict(
            record.query("SELECT queue, count(DISTINCT digest || properties) FROM messages GROUP BY queue")
        )
        (keys,) = zip(*record.query("SELECT DISTINCT routing_key FROM outbox"), strict=True)
    # Had an answer gone into a queue of requests, more than what was sent would have come.
    assert set(keys) == {SITE.replies, SITE.rodan_replies} == {one.queue for one in lab.exchange.arrived}
    taken[SITE.queue] += taken.pop("train.dead", 0)
    assert all(taken[queue] <= number for queue, number in lab.exchange.sent.items()), taken
    for name in (SITE.queue, SITE.rodan_queue, "train.dead"):
        # The broker counts with a delay.
        until(lambda name=name: (lab.gateway.broker.queue(name) or {}).get("messages") == 0, name)  # type: ignore[misc]


def test_a_text_reaches_the_training_as_it_is(lab: Lab, served: list[Message]) -> None:
    assert title_of(lab.exchange.answers_to(b"shell")[0]) == SHELL
    assert not list(lab.gateway.lab.root.rglob("owned"))


def test_nothing_was_started_for_a_message_that_was_not_served(lab: Lab, served: list[Message]) -> None:
    with lab.gateway.record() as record:
        runs = {one.run for one in record.requests() if one.run}
        refused_ones = [one for one in record.requests() if one.failure is not None]
        assert all(one.submitted is None or one.failure.code.value == "expired" for one in refused_ones)
    lines = lab.gateway.starts.read_text().splitlines()
    assert {line.split()[0] for line in lines} <= runs
    assert len({line.split()[1] for line in lines}) == len(lines), "an attempt was started twice"


def test_the_same_again_gets_the_stored_answer_after_a_restart(lab: Lab, served: list[Message]) -> None:
    starts = lab.gateway.starts.read_text()
    rows = {row.name: row for row in served}
    for name in ("16-first", "good-0", "good-1"):
        correlation = rows[name].properties["correlation_id"]
        before = lab.exchange.answers_to(correlation)
        lab.send(rows[name])
        again = lab.exchange.await_answer(correlation, lab.gateway.log, len(before) + 1)
        assert again.body == before[0].body
    clash = len(lab.exchange.answers_to(b"17-clash"))
    lab.send(rows["17-other-body"])
    assert outcome_of(lab.exchange.await_answer(b"17-clash", lab.gateway.log, clash + 1)) == refused(
        "duplicate_id"
    )
    assert lab.gateway.starts.read_text() == starts


def test_no_secret_is_in_a_file_but_its_own(lab: Lab, served: list[Message]) -> None:
    gateway = lab.gateway.directory
    exempt = {gateway.tokens / "application", *gateway.credentials.iterdir()}
    files = [path for path in lab.gateway.lab.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 100 and gateway.audit in files
    found = [
        (name, path)
        for path in files
        if path not in exempt
        for name, secret in lab.secrets.items()
        # An upload needs its signature: it is in the record, which nobody else can read.
        if not (name == "signature" and path.name.startswith("requests.sqlite"))
        and secret.encode() in path.read_bytes()
    ]
    assert not found
    assert lab.application.uploaded["/store/title"] == b"none"


def test_others_can_read_nothing_of_a_gateway(lab: Lab, served: list[Message]) -> None:
    gateway = lab.gateway.directory
    assert gateway.root.stat().st_mode & 0o077 == 0
    for name in ("requests.sqlite", "requests.sqlite-wal", "audit.jsonl", "tokens", "answers", "experiments"):
        assert (gateway.root / name).stat().st_mode & 0o077 == 0, name


def test_terminals_get_no_control_characters(lab: Lab, served: list[Message]) -> None:
    with lab.gateway.record() as record:
        numbers = [one.number for one in record.requests() if not one.shown_id.isalnum()]
        aside = [one.number for one in record.quarantined()]
    commands = [["status"], ["requests"], ["quarantine"], ["status", "--json"], ["requests", "--json"]]
    commands += [["explain", str(number)] for number in numbers]
    commands += [["quarantine", "--show", str(number)] for number in aside]
    for name, *arguments in commands:
        place = ["-C", str(lab.gateway.directory.root)]
        place = place if name == "explain" else place[1:]
        result = CliRunner().invoke(group, ["gateway", name, *arguments, *place])
        assert result.exit_code == 0, (name, arguments, result.output, result.exception)
        assert not CONTROL.search(result.output), (name, arguments, result.output)
    assert not CONTROL.search(lab.gateway.log().replace("\x1b[", ""))
    assert not CONTROL.search(lab.gateway.directory.audit.read_text())
