"""Rodan's own jobs at a gateway with the template that `outlast gateway init` writes for them.

The waiters behave as Rodan's runs do: they share two queues that are neither durable nor exclusive, and put
back every reply that is not their own. The trainer is a stand-in that writes files of the real one's shape,
from the images; one run has the real one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest

from outlast.gateway.configuration.new_gateway import init_gateway
from outlast.gateway.gateway_directory import GatewayDirectory
from servers import application as web
from servers.application import LOGIN, ApplicationServer
from servers.certificates import Authority
from support.broker import PASSWORD, USER, shared_broker, until
from support.example_runs import ENVIRONMENT
from support.gateway_lab import GatewayLab, gateway_lab
from support.rodan_waiter import JOBS, RESULTS, SETTINGS, RodanRun, RodanRunFailed, perform_together

PATIENCE = 120.0
WAITERS = 10
SMALL = {
    **SETTINGS,
    "Maximum number of training epochs": 1,
    "Maximum number of samples per label": 100,
    "Patch height": 64,
    "Patch width": 64,
}
#: It has the options of the real one, and writes what follows from the files that it gets.
TRAINER = """\
import argparse, hashlib, json, os, pathlib, zipfile

parser = argparse.ArgumentParser()
for name in ("data", "epochs", "samples", "patch-height", "patch-width", "width", "batch-size", "lr"):
    parser.add_argument("--" + name, required=True)
given = parser.parse_args()
output, page = (pathlib.Path(os.environ[name]) for name in ("OUTLAST_OUTPUT_DIR", "OUTLAST_DATA_DIR"))
page /= given.data
assert {"Image.png", "rgba PNG - Selected regions.png"} <= {file.name for file in page.iterdir()}
for file in page.glob("rgba PNG - *.png"):
    name = file.stem[len("rgba PNG - "):].lower().replace(" ", "_")
    if name != "selected_regions":
        with zipfile.ZipFile(output / (name + ".pt"), "w") as model:
            model.writestr("digest", hashlib.sha256(file.read_bytes()).hexdigest())
(output / "metrics.json").write_text(json.dumps({"epochs": int(given.epochs)}))
"""
CHECKER = """\
import os, sys, zipfile
for name in sys.argv[1:]:
    assert zipfile.ZipFile(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], name)).testzip() is None
"""


def page_of(seed: int, side: int = 96) -> bytes:
    """Return a small RGBA page as a PNG: a block of it is opaque."""
    rows = bytearray()
    for row in range(side):
        rows.append(0)
        for column in range(side):
            inside = row > side // 4 and (column * 7 + row * seed) % 11 < 5
            rows += bytes((seed * 20 % 256, row, column, 255 if inside else 0))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(rows))),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@dataclass
class Rodan:
    """The application with its pages, and the gateway."""

    gateway: GatewayLab
    application: ApplicationServer

    def run(self, number: int, layers: int, **settings: str | int) -> RodanRun:
        """Return a run with images of its own."""
        names = ("Image", "Background", "Selected Regions")
        names += tuple("rgba PNG - Layer %d" % layer for layer in range(layers))
        inputs = {}
        for index, name in enumerate(names):
            path = "/uploads/projects/%032x/resources/%032x/original_file" % (number, index)
            self.application.put(path, page_of(10 * number + index + 1))
            inputs[name] = path
        # Without its pause, a waiter spins until the others have taken their replies.
        return RodanRun(inputs, {**SMALL, **settings}, pause=0.02)

    def content(self, path: str) -> bytes:
        return self.application._files[path].content

    def parameters(self) -> pika.ConnectionParameters:
        credentials = pika.PlainCredentials(USER, PASSWORD)
        broker = self.gateway.broker
        return pika.ConnectionParameters("127.0.0.1", broker.port, broker.virtual_host, credentials)


def write_gateway(lab: GatewayLab, application: ApplicationServer, certificates: Path) -> None:
    """Write the template of `outlast gateway init`, for an application on this machine."""
    made = GatewayDirectory(lab.lab.root / "init")
    init_gateway(made.root)
    lab.directory.templates.mkdir()
    place = lab.directory.template("pages-rodan")
    made.template("pages-rodan").rename(place)
    text = (place / "template.yaml").read_text()
    private = 'most: 500MB, private_hosts: ["127.0.0.1:%d"]' % application.port
    assert text.count("most: 500MB") == 13
    # A file that is not there is given up at once.
    text = text.replace("most: 500MB", private).replace("  total: 4d", "  total: 4d\n  outage: 1s")
    assert "outage: 1s" in text
    (place / "template.yaml").write_text(text)
    credentials = lab.directory.credentials / "application.yaml"
    credentials.touch(0o600)
    credentials.write_text(
        "username: %s\nemail: %s\npassword: %s\n" % (web.USERNAME, web.EMAIL, web.PASSWORD)
    )
    lab.write_settings(
        queues=[{"name": JOBS, "dialect": "rodan", "template": "pages-rodan", "reply_to": [RESULTS]}],
        application={
            "url": application.url("").rstrip("/"),
            "login": LOGIN,
            "credentials": "credentials/application.yaml",
            "ca_file": str(certificates),
        },
    )
    # Rodan asks for six CPUs.
    settings = lab.lab.root / "config" / "outlast" / "clusters.yaml"
    settings.write_text("local: {hosts: {alpha: 64, beta: 64}, transfers: {patience: 2s}}\n")
    lab.lab.environment.update(ENVIRONMENT)


@pytest.fixture
def rodan(authority: Authority) -> Iterator[Rodan]:
    certificate = authority.issue("rodan")
    with (
        shared_broker().own_virtual_host() as broker,
        ApplicationServer({}, certificate, open_below=("/uploads/",)) as application,
        gateway_lab(broker, ()) as gateway,
    ):
        gateway.templates = ("pages-rodan",)
        write_gateway(gateway, application, authority.bundle)
        yield Rodan(gateway, application)


def start(rodan: Rodan, with_stand_in: bool) -> None:
    if with_stand_in:
        place = rodan.gateway.directory.template("pages-rodan")
        (place / "pages.py").write_text(TRAINER)
        (place / "check_model.py").write_text(CHECKER)
    rodan.gateway.up()
    until(lambda: rodan.gateway.broker.queue(JOBS), rodan.gateway.log)


def test_ten_runs_at_once_get_their_own_models_and_failures(rodan: Rodan) -> None:
    start(rodan, with_stand_in=True)
    runs = [rodan.run(number, 1 + number % 3) for number in range(WAITERS - 2)]
    # A file that is not there, and a setting that the template does not allow.
    missing = rodan.run(100, 1)
    missing.inputs = {**missing.inputs, "Background": "/uploads/projects/0/resources/0/original_file"}
    runs += [missing, rodan.run(101, 1, **{"Patch height": 4096})]
    failures = perform_together(runs, rodan.parameters, PATIENCE)
    assert failures[: WAITERS - 2] == [None] * (WAITERS - 2), (failures, rodan.gateway.log())
    for run in runs[: WAITERS - 2]:
        assert list(run.models) == run.outputs
        named = {"Background Model": "Background"}
        for output, model in run.models.items():
            name = named.get(output, "rgba PNG - Layer %s" % output.rpartition(" ")[2])
            expected = hashlib.sha256(rodan.content(run.inputs[name])).hexdigest()
            with zipfile.ZipFile(io.BytesIO(model)) as opened:
                assert opened.read("digest").decode() == expected
    texts = [str(failure) for failure in failures[WAITERS - 2 :]]
    assert all(isinstance(failure, RodanRunFailed) for failure in failures[WAITERS - 2 :]), failures
    assert "The input background" in texts[0] and "Error code: input_unavailable." in texts[0]
    assert "patch_height" in texts[1] and "Error code: invalid_request." in texts[1]
    rodan.gateway.until_all_answered()
    for name in (JOBS, RESULTS):
        queue = rodan.gateway.broker.queue(name)
        assert queue is not None and not queue["durable"] and not queue["arguments"]
    assert sum(run.put_back for run in runs) > 0, "the replies did not go through one queue"


def test_a_run_of_rodan_gets_models_that_load(rodan: Rodan) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("torch")
        pytest.importorskip("PIL.Image")
    import torch

    start(rodan, with_stand_in=False)
    run = rodan.run(1, 2)
    run.perform(rodan.parameters(), PATIENCE)
    assert list(run.models) == ["Background Model", "Model 0", "Model 1"]
    for model in run.models.values():
        loaded = torch.load(io.BytesIO(model), weights_only=True)
        assert loaded, json.dumps(sorted(run.models))
    experiment = rodan.gateway.directory.experiment("pages-rodan")
    (results,) = (experiment / "results").iterdir()
    assert json.loads((results / "metrics.json").read_text())["epochs"] == 1
