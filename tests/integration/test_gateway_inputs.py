"""Files that requests name, and places for their results, through whole gateway runs.

The servers behind the names misbehave. Each request has one answer with its cause; the application's token
goes to the application alone, and to no place there but that for results.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from servers import application as web
from servers.application import LOGIN, ApplicationServer
from servers.behaviour import Behaviour
from servers.certificates import Authority
from servers.misbehaving import Misbehaving
from support.broker import shared_broker, until
from support.gateway_lab import GatewayLab, gateway_lab
from support.hostile_archives import zips
from support.message_exchange import Exchange, exchange
from support.yaml_files import write_yaml

QUEUE, REPLIES = "train", "results"
PAGE = b"a page\n" * 10
MOST = 100_000
TRAIN = """\
if [ -e "$OUTLAST_DATA_DIR/page" ]; then cat "$OUTLAST_DATA_DIR/page" > "$OUTLAST_OUTPUT_DIR/copy"; fi
head -c "$1" /dev/zero > "$OUTLAST_OUTPUT_DIR/model"
"""
PARAMS = {
    "command": "sh train.sh {size}",
    "code": ["train.sh"],
    "resources": {"cpus": 1, "memory": "100MB", "disk": "100MB", "time": "10m"},
    "outputs": ["model"],
    "checkpoints": {"grace": "1s"},
}
CEILINGS = {"cpus": 1, "memory": "200MB", "disk": "200MB", "time": "10m", "total": "1h"}
#: Servers that always behave so; the paths of these are not there or are reached only through redirects.
ALWAYS: Mapping[str, Behaviour] = {
    "stalls": Behaviour(stall_after=20),
    "truncates": Behaviour(close_after=0),
    "announces-more": Behaviour(announce=50, close_after=40),
    "silent": Behaviour(silent=True),
    "fails": Behaviour(status=500),
    "rubbish": Behaviour(rubbish=b"SSH-2.0-x\r\n\r\n"),
    "endless-headers": Behaviour(endless_headers=True),
}


@dataclass
class Lab:
    gateway: GatewayLab
    application: ApplicationServer
    exchange: Exchange
    others: dict[str, Misbehaving] = field(default_factory=dict)

    def send(self, id: str, template: str, url: object = None, size: int = 10, **changes: Any) -> None:
        """Send a request for a template with a file."""
        inputs = {} if url is None else {"page": url}
        body = {"outlast": 1, "kind": "train", "template": template, "parameters": {"size": size}}
        content = json.dumps({**body, "inputs": inputs, **changes}).encode()
        self.exchange.publish(QUEUE, content, {"correlation_id": id, "reply_to": REPLIES})

    def answer(self, id: str) -> Any:
        return json.loads(self.exchange.await_answer(id.encode(), self.gateway.log).body)

    def code(self, id: str) -> str:
        answer = self.answer(id)
        return str(answer["code"]) if answer["kind"] == "failure" else "served"

    def file(self, id: str, name: str) -> Mapping[str, Any]:
        answer = self.answer(id)
        assert answer["kind"] == "result", answer
        return next(one for one in answer["files"] if one["name"] == name)

    def kept(self, id: str) -> Path:
        """Return the directory with the result of a request."""
        with self.gateway.record() as record:
            request = record.request_by_id(id.encode())
        assert request is not None
        return self.gateway.directory.experiment(request.template) / "results" / request.run

    def forget_last_login(self) -> None:
        """Let the last log-in be long ago."""
        long_ago = time.time() - 3600
        os.utime(self.gateway.directory.tokens / ".application.last-login", (long_ago, long_ago))


def write_templates(lab: GatewayLab, hosts: list[str], application: str) -> None:
    shared = lab.lab.root / "shared"
    shared.mkdir()
    uploads = {"hosts": [application], "path": "/results/"}
    page = {"to": "page", "most": "100kB", "private_hosts": hosts}
    archive = {"to": "unpacked", "most": "100kB", "unpack": "nested", "private_hosts": hosts}
    templates: dict[str, dict[str, Any]] = {
        # Files that cannot be fetched are given up at once.
        "hasty": {"inputs": {"page": page}, "ceilings": {**CEILINGS, "outage": "1s"}},
        "patient": {"inputs": {"page": page}, "ceilings": CEILINGS, "uploads": uploads},
        "archive": {"inputs": {"page": archive}, "ceilings": {**CEILINGS, "outage": "1s"}},
        "shared": {"ceilings": CEILINGS, "uploads": {"directory": str(shared)}},
    }
    for name, content in templates.items():
        place = lab.directory.template(name)
        size = {"type": "integer", "at_least": 0, "at_most": 10**6}
        answer = {"model": "model", "copy": "copy?"}
        inputs = {key: {**rule, "required": "no"} for key, rule in content.pop("inputs", {}).items()}
        about = {"parameters": {"size": size}, "answer": answer, "inputs": inputs}
        write_yaml(place / "template.yaml", {key: one for key, one in {**about, **content}.items() if one})
        write_yaml(place / "params.yaml", {"name": name, **PARAMS})
        (place / "train.sh").write_text(TRAIN)


def write_gateway(
    lab: GatewayLab, application: ApplicationServer, hosts: list[str], certificates: Path
) -> None:
    credentials = lab.directory.credentials / "application.yaml"
    credentials.touch(0o600)
    credentials.write_text(
        "username: %s\nemail: %s\npassword: %s\n" % (web.USERNAME, web.EMAIL, web.PASSWORD)
    )
    host = "127.0.0.1:%d" % application.port
    write_templates(lab, [host, *hosts], host)
    lab.write_settings(
        queues=[{"name": QUEUE, "reply_to": [REPLIES]}],
        application={
            "url": application.url("").rstrip("/"),
            "login": LOGIN,
            "credentials": "credentials/application.yaml",
            "ca_file": str(certificates),
        },
        limits={"answer": "20kB"},
    )
    settings = lab.lab.root / "config" / "outlast" / "clusters.yaml"
    settings.write_text("local: {hosts: {alpha: 8, beta: 8}, transfers: {patience: 2s}}\n")
    # The others have the same authority, and are not the application.
    lab.lab.environment["SSL_CERT_FILE"] = str(certificates)


@pytest.fixture(scope="module")
def lab(authority: Authority) -> Iterator[Lab]:
    certificate = authority.issue("inputs")
    files = {"/uploads/page": PAGE, "/uploads/large": bytes(3 * MOST)}
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(shared_broker().own_virtual_host())
        application = stack.enter_context(ApplicationServer(files, certificate))
        others = {
            name: stack.enter_context(Misbehaving({"/page": PAGE}, certificate))
            for name in ("listed", "stranger", "victim", "redirects", *ALWAYS)
        }
        for name, behaviour in ALWAYS.items():
            others[name].always(behaviour)
        gateway = stack.enter_context(gateway_lab(broker, ()))
        gateway.templates = ("hasty", "patient", "archive", "shared")
        hosts = [
            "127.0.0.1:%d" % server.port
            for name, server in others.items()
            if name not in ("stranger", "victim")
        ]
        write_gateway(gateway, application, hosts, authority.bundle)
        messages = stack.enter_context(exchange(broker))
        messages.declare(REPLIES)
        messages.collect(REPLIES)
        gateway.up()
        until(lambda: broker.queue(QUEUE), gateway.log)
        yield Lab(gateway, application, messages, others)


def test_places_that_are_not_the_site_s_are_refused_without_a_connection(lab: Lab) -> None:
    victim, port = lab.others["victim"], lab.application.port
    urls = [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:6379",
        victim.url("/page"),
        "file:///etc/passwd",
        "//other/x",
        "/uploads/../admin",
        "/uploads/%2e%2e/admin",
        "https://user@127.0.0.1:%d/uploads/page" % port,
        "https://user:hunter2@127.0.0.1:%d/uploads/page" % port,
        "https://127.0.0.1:%d@127.0.0.1:%d/page" % (port, victim.port),
        "https://localhost:%d/page" % victim.port,
        "https://[::ffff:127.0.0.1]:%d/page" % victim.port,
        "https://2130706433:%d/page" % victim.port,
        "gopher://127.0.0.1:6379/x",
        "\\\\127.0.0.1\\x",
    ]
    before = len(lab.application.received("download"))
    for number, url in enumerate(urls):
        lab.send("place-%d" % number, "hasty", url)
    found = {url: lab.code("place-%d" % number) for number, url in enumerate(urls)}
    assert set(found.values()) == {"input_refused"}, found
    assert not victim.requests and len(lab.application.received("download")) == before
    for number in range(len(urls)):
        assert "hunter2" not in json.dumps(lab.answer("place-%d" % number)["message"])


def test_the_token_goes_to_the_application_and_with_no_redirect_to_another_host(lab: Lab) -> None:
    listed, stranger = lab.others["listed"], lab.others["stranger"]
    for id, target in {"to-listed": listed, "to-stranger": stranger}.items():
        lab.application.put("/uploads/" + id, PAGE)
        lab.application.always_for("download", Behaviour(redirect=target.url("/page")))
        lab.send(id, "hasty", "/uploads/" + id)
        expected = "served" if target is listed else "input_refused"
        assert lab.code(id) == expected, lab.answer(id)
    lab.application.always_for("download", Behaviour())
    assert listed.requests and not stranger.requests
    assert not [one for one in listed.requests if "authorization" in one.headers]
    lab.send("direct", "hasty", listed.url("/page"))
    assert base64.b64decode(lab.file("direct", "copy")["content_base64"]) == PAGE
    assert not [one for one in listed.requests if "authorization" in one.headers]
    assert set(lab.application.paths_with_token()) == {"/uploads/to-listed", "/uploads/to-stranger"}


def test_redirects_that_do_not_end_or_lead_to_plain_http_are_refused(lab: Lab) -> None:
    redirects = lab.others["redirects"]
    redirects.always(Behaviour(redirect=redirects.url("/page")))
    lab.send("circle", "hasty", redirects.url("/page"))
    assert lab.code("circle") in ("input_refused", "input_unavailable")
    assert len(redirects.requests) < 100
    redirects.always(Behaviour(redirect="http://127.0.0.1:%d/page" % lab.others["listed"].port))
    lab.send("plain", "hasty", redirects.url("/page"))
    assert lab.code("plain") in ("input_refused", "input_unavailable")
    redirects.always(Behaviour(redirect="file:///etc/passwd"))
    lab.send("file", "hasty", redirects.url("/page"))
    assert lab.code("file") in ("input_refused", "input_unavailable")


def test_files_that_do_not_come_whole_are_unavailable_and_large_ones_over_the_ceiling(lab: Lab) -> None:
    right = hashlib.sha256(PAGE).hexdigest()
    url = lab.others["listed"].url("/page")
    requests: dict[str, tuple[object, str]] = {
        **{name: (lab.others[name].url("/page"), "input_unavailable") for name in ALWAYS},
        "missing": ("/uploads/nothing", "input_unavailable"),
        "large": ("/uploads/large", "over_ceiling"),
        "too-large-by-itself": ({"url": url, "size": 2 * MOST}, "over_ceiling"),
        "other-digest": ({"url": url, "sha256": "0" * 64}, "input_refused"),
        "other-size": ({"url": url, "size": 5}, "input_refused"),
        "right": ({"url": url, "size": len(PAGE), "sha256": right}, "served"),
    }
    for name, (reference, _) in requests.items():
        lab.send("whole-" + name, "hasty", reference)
    found = {name: lab.code("whole-" + name) for name in requests}
    assert found == {name: expected for name, (_, expected) in requests.items()}


def bomb() -> bytes:
    """Return a ZIP of a few kilobytes with ten megabytes in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(10**7))
    return buffer.getvalue()


def test_hostile_archives_are_refused_and_write_nothing_outside(lab: Lab) -> None:
    attacks = {one.what: one.archive for one in zips()}
    names = [name for name in attacks if "upwards" in name or "'../evil'" in name or "link" in name]
    names += [name for name in attacks if "'/evil'" in name or "seven zips" in name]
    assert len(names) >= 4
    for number, name in enumerate(names):
        lab.application.put("/uploads/zip-%d" % number, attacks[name])
        lab.send("zip-%d" % number, "archive", "/uploads/zip-%d" % number)
    lab.application.put("/uploads/bomb", bomb())
    lab.send("bomb", "archive", "/uploads/bomb")
    found = {name: lab.code("zip-%d" % number) for number, name in enumerate(names)}
    assert set(found.values()) <= {"input_refused", "over_ceiling"}, found
    assert lab.code("bomb") == "input_refused"
    assert not list(lab.gateway.lab.root.rglob("evil"))


def test_a_token_that_was_reset_is_fetched_anew_once(lab: Lab) -> None:
    logins = len(lab.application.received("login"))
    lab.forget_last_login()
    lab.application.token = "a-new-token-of-the-application"
    lab.send("reset", "patient", "/uploads/page")
    assert lab.code("reset") == "served"
    assert len(lab.application.received("login")) == logins + 1


def test_a_token_that_is_refused_for_ever_is_an_unavailable_input_after_few_log_ins(lab: Lab) -> None:
    logins = len(lab.application.received("login"))
    lab.forget_last_login()
    lab.application.always_for("download", Behaviour(status=401))
    try:
        lab.send("refused", "hasty", "/uploads/page")
        assert lab.code("refused") == "input_unavailable"
    finally:
        lab.application.always_for("download", Behaviour())
    assert len(lab.application.received("login")) <= logins + 1


def test_results_travel_by_value_by_upload_and_through_a_shared_directory(lab: Lab) -> None:
    presigned = lab.application.presigned("/store/model")
    own = lab.application.url("/results/7/model")
    lab.send("by-value", "patient", size=100)
    lab.send("by-url", "patient", size=50_000, uploads={"model": presigned})
    lab.send("by-token", "patient", size=50_001, uploads={"model": own})
    lab.send("by-path", "shared", size=50_002)
    lab.send("nowhere", "patient", size=50_003)
    assert base64.b64decode(lab.file("by-value", "model")["content_base64"]) == bytes(100)
    assert lab.file("by-url", "model")["place"] == presigned.partition("?")[0]
    assert lab.file("by-token", "model")["place"] == own
    assert lab.application.uploaded["/store/model"] == bytes(50_000)
    assert lab.application.uploaded["/results/7/model"] == bytes(50_001)
    place = Path(lab.file("by-path", "model")["place"])
    assert place.is_relative_to(lab.gateway.lab.root / "shared") and place.stat().st_size == 50_002
    assert lab.code("nowhere") == "result_undeliverable"
    assert (lab.kept("nowhere") / "model").stat().st_size == 50_003
    puts = {one.path.partition("?")[0]: one for one in lab.application.received("upload")}
    assert "authorization" not in puts["/store/model"].headers
    assert "authorization" in puts["/results/7/model"].headers


def test_a_place_where_the_site_puts_nothing_is_refused_before_anything_is_computed(lab: Lab) -> None:
    before = len(lab.application.received("upload"))
    for number, path in enumerate(
        ("/api/users/1/", "/results/../api/users/1/", "/results/..%2fapi", "/results")
    ):
        lab.send("put-%d" % number, "patient", uploads={"model": lab.application.url("") + path})
        assert lab.code("put-%d" % number) == "invalid_request"
    assert len(lab.application.received("upload")) == before


def test_an_upload_is_tried_again_after_500_and_given_up_after_403_and_redirects(lab: Lab) -> None:
    lab.application.plan_for("upload", Behaviour(status=500))
    lab.send("busy", "patient", uploads={"model": lab.application.url("/results/busy")})
    assert lab.file("busy", "model")["place"].endswith("/results/busy")
    stranger = lab.others["stranger"]
    for id, behaviour in {
        "forbidden": Behaviour(status=403),
        "moved": Behaviour(redirect=stranger.url("/page"), status=307),
    }.items():
        lab.application.plan_for("upload", behaviour)
        lab.send(id, "patient", size=77, uploads={"model": lab.application.url("/results/" + id)})
        assert lab.code(id) == "result_undeliverable"
        assert (lab.kept(id) / "model").stat().st_size == 77
    assert not stranger.requests


def test_no_token_was_sent_to_anybody_else(lab: Lab) -> None:
    for name, server in lab.others.items():
        assert not [one for one in server.requests if "authorization" in one.headers], name
