"""The gateway's commands as people type them: exit codes, messages, and `send` against a real broker."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.record.record import Origin, Record
from outlast.gateway.requests import TrainingRequest
from support.broker import PASSWORD, USER, Broker, PrivateBroker, until
from support.gateways import write_gateway

#: Seconds. Only a failing test waits for so long.
PATIENCE = 60.0
REPLY_QUEUE = "results.outlast-id-1"


def outlast(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outlast", "gateway", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayDirectory:
    return write_gateway(tmp_path / "lab").directory


@pytest.fixture
def connected(gateway: GatewayDirectory, broker: Broker) -> GatewayDirectory:
    """Return a gateway with the settings of the broker of the tests, and its queue."""
    return connect(gateway, broker)


def connect(gateway: GatewayDirectory, broker: Broker) -> GatewayDirectory:
    (gateway.root / "gateway.yaml").write_text(
        "broker: {host: localhost, port: %d, virtual_host: '%s', credentials: credentials/broker.yaml}\n"
        "queues: [{name: train, reply_to: ['results.*']}]\n"
        "templates: [pages]\nprogress: progress\napplication: {url: 'https://app.example.org'}\n"
        % (broker.port, broker.virtual_host)
    )
    (gateway.root / "credentials" / "broker.yaml").write_text("{user: %s, password: %s}" % (USER, PASSWORD))
    broker.declare_queue("train")
    return gateway


class Sent:
    """`outlast gateway send`, and the gateway that the test plays."""

    def __init__(self, gateway: GatewayDirectory, broker: Broker, *arguments: str) -> None:
        self._broker = broker
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outlast", "gateway", "send", str(gateway.root), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def request(self) -> dict[str, Any]:
        """Take the request out of the queue."""
        *_, found = until(lambda: self._broker.get("train"), "no request came")
        return dict(found)

    def answer(self, request: dict[str, Any], **body: Any) -> None:
        properties = request["properties"]
        content = json.dumps({"outlast": 1, "id": properties["message_id"], **body}).encode()
        self._broker.publish(properties["reply_to"], content, correlation_id=properties["correlation_id"])

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code and what it has printed."""
        try:
            out, err = self._process.communicate(timeout=PATIENCE)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        return self._process.returncode, out, err


def result(name: str, content: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(content).decode()
    sha256 = hashlib.sha256(content).hexdigest()
    return {"name": name, "size": len(content), "sha256": sha256, "content_base64": encoded}


# send


def test_send_waits_for_the_result_and_writes_its_files(
    connected: GatewayDirectory, broker: Broker, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sent = Sent(
        connected,
        broker,
        *("--template", "pages", "--parameter", "epochs=3", "--parameter", "rate=1e-3"),
        *("--input", "book=https://app.example.org/a", "--memory", "1GB", "--wait", "--out", str(out)),
    )
    request = sent.request()
    body = json.loads(base64.b64decode(request["payload"]))
    assert body["parameters"] == {"epochs": 3, "rate": 0.001}
    assert request["properties"]["user_id"] == USER and request["properties"]["delivery_mode"] == 2
    sent.answer(request, kind="result", files=[result("model", b"weights")])
    code, text, errors = sent.end()
    assert code == 0, errors
    assert "finished: 1 file" in text and (out / "model").read_bytes() == b"weights"


def test_send_exits_with_1_for_a_failure_and_shows_why(connected: GatewayDirectory, broker: Broker) -> None:
    sent = Sent(connected, broker, "--template", "pages", "--wait", "--json")
    mistakes = ["inputs.book: it is missing"]
    sent.answer(
        sent.request(), kind="failure", code="invalid_request", message="No.", advice="Do.", mistakes=mistakes
    )
    code, text, _ = sent.end()
    answer = json.loads(text)["answer"]
    assert (code, answer["code"], answer["mistakes"]) == (1, "invalid_request", mistakes)


def test_send_asks_for_the_state_of_a_request(connected: GatewayDirectory, broker: Broker) -> None:
    sent = Sent(connected, broker, "--status", "id-1")
    request = sent.request()
    assert json.loads(base64.b64decode(request["payload"])) == {"outlast": 1, "kind": "status", "id": "id-1"}
    sent.answer(request, kind="status", state="running", note="waits for a slot")
    assert sent.end()[:2] == (0, "running; waits for a slot\n")


def test_send_exits_with_2_if_no_answer_comes_in_time(connected: GatewayDirectory, broker: Broker) -> None:
    sent = Sent(connected, broker, "--template", "pages", "--id", "id-1", "--wait", "1")
    code, text, errors = sent.end()
    assert code == 2 and "no answer came in time" in errors
    assert "outlast gateway send %s --status id-1" % connected.root in text
    assert broker.get("train"), "the request is in the queue"


def test_send_exits_with_2_if_there_is_no_queue(connected: GatewayDirectory, broker: Broker) -> None:
    broker.delete_queue("train")
    done = outlast("send", str(connected.root), "--template", "pages")
    assert done.returncode == 2
    assert "the broker has no queue train; `outlast gateway up` creates it" in done.stderr


def test_send_gets_its_answer_although_the_broker_was_killed_meanwhile(
    gateway: GatewayDirectory, fragile_broker: PrivateBroker
) -> None:
    connect(gateway, fragile_broker)
    sent = Sent(gateway, fragile_broker, "--template", "pages", "--id", "id-1", "--wait", "--json")
    first = sent.request()
    fragile_broker.kill()
    fragile_broker.start()
    # A message that was taken may come again after a kill: that the reply queue is there is what counts.
    until(lambda: fragile_broker.queue(REPLY_QUEUE), "the reply queue was not made again")
    second = sent.request()
    assert (first["payload"], first["properties"]) == (second["payload"], second["properties"])
    sent.answer(second, kind="result", files=[])
    code, text, errors = sent.end()
    assert code == 0 and json.loads(text)["answer"]["kind"] == "result", errors


def test_send_without_waiting_asks_for_no_answer(connected: GatewayDirectory, broker: Broker) -> None:
    done = outlast("send", str(connected.root), "--template", "pages", "--id", "id-1")
    assert done.returncode == 0, done.stderr
    (request,) = broker.get("train")
    assert "reply_to" not in request["properties"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--template NAME, --cancel ID and --status ID"),
        (["--template", "pages", "--out", "x"], "--out needs --wait"),
        (["--status", "x", "--cpus", "1"], "take no parameters"),
        (["--template", "pages", "--parameter", "epochs=x"], "--parameter epochs: a whole number"),
        (["--template", "pages", "--wait", "soon"], "(a directory stands before it)"),
        (["--template", "pages", "--queue", "other"], "gateway.yaml has no queue other"),
        (["--template", "pages", "--reply-to", "other"], "sends no answers to other"),
        (["--template", "pages", "--deadline", "soon"], "--deadline"),
    ],
)
def test_wrong_options_are_explained_before_anything_is_sent(
    gateway: GatewayDirectory, options: list[str], expected: str
) -> None:
    done = outlast("send", str(gateway.root), *options)
    assert done.returncode == 2 and expected in done.stderr
    assert "Traceback" not in done.stderr


# The others


def fill(gateway: GatewayDirectory) -> None:
    record = Record(gateway.record, create=True)
    origin = Origin(b"id-1", "digest", "train", "outlast", "ann", "results", b"id-1")
    record.add_request(origin, TrainingRequest("pages"), time.time(), run_of="pages")
    record.close()


def test_the_commands_work_in_the_directory_of_the_gateway_and_print_one_json_value(
    gateway: GatewayDirectory,
) -> None:
    fill(gateway)
    for command in (
        *("status", "requests", "explain id-1", "cancel id-1", "quarantine", "drain", "drain --off"),
    ):
        done = outlast(*command.split(), "--json", cwd=gateway.root)
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)


def test_errors_are_one_line_that_says_what_to_type(gateway: GatewayDirectory) -> None:
    fill(gateway)
    for command, expected in (
        ("explain none", "`outlast gateway requests` lists them"),
        ("retry id-1", "`outlast gateway cancel 1` cancels it"),
        ("replay id-1", "`outlast gateway explain 1` shows it"),
        ("quarantine --show 7", "`outlast gateway quarantine` lists them"),
    ):
        done = outlast(*command.split(), cwd=gateway.root)
        assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1


def test_status_needs_neither_the_client_library_nor_the_schema_nor_a_journal(
    gateway: GatewayDirectory,
) -> None:
    fill(gateway)
    code = (
        "import sys; from outlast.cli import group; "
        "group.main(['gateway', 'status', '.'], standalone_mode=False); "
        "slow = ('pika', 'pydantic', 'ruamel', 'outlast.journal.journal'); "
        "sys.exit(any(name in sys.modules for name in slow))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=gateway.root,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
