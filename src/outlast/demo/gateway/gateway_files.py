"""The gateway's directory in the demo: settings, credentials, and one template with its training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast.demo.demo_application import LOGIN, USERNAME, WebApplication
from outlast.demo.gateway import line_training
from outlast.demo.gateway.rabbitmq import PASSWORD, USER

#: The queues of requests and answers, the template, and the path of its input at the application.
REQUESTS, ANSWERS = "train", "train.results"
TEMPLATE = "line"
INPUT = "/uploads/points.json"
#: Bytes: what a job requests at first, and the template's ceiling.
MEMORY, CEILING = 400 * 10**6, 2 * 10**9


def make_points() -> list[list[float]]:
    """Return the points of the demo, near the line 1 + 2x."""
    return [[x / 50, 1 + 2 * x / 50 + (x % 7 - 3) / 100] for x in range(-50, 51)]


def undisturbed_result(epochs: int) -> dict[str, Any]:
    """Return what a training must end with: the same whatever happens on the way, bit for bit."""
    weights, points = [0.0, 0.0], make_points()
    for epoch in range(epochs):
        line_training.train_epoch(weights, points, epoch)
    return {"epoch": epochs, "weights": weights}


def write_gateway(
    root: Path, port: int, application: WebApplication, ca_file: Path, hosts: Mapping[str, int]
) -> None:
    """Write a gateway for the broker at this port of loopback, and for the application.

    `ca_file` has the authority of the application's certificate; `hosts` are those of the local cluster.
    """
    broker = {"host": "127.0.0.1", "port": port, "credentials": "credentials/broker.yaml"}
    settings = {
        "broker": {**broker, "heartbeat": "5s", "connect_timeout": "5s"},
        "queues": [{"name": REQUESTS, "reply_to": [ANSWERS]}],
        "templates": [TEMPLATE],
        "application": {
            "url": application.url,
            "login": LOGIN,
            "credentials": "credentials/application.yaml",
            "ca_file": str(ca_file),
        },
    }
    template = {
        "title": "Fits a line to points",
        "parameters": {
            "epochs": {"type": "integer", "at_least": 1, "at_most": 10000},
            "batch_mb": {"type": "integer", "at_least": 1, "at_most": 5000, "default": 1},
        },
        "inputs": {"points": {"to": "points.json", "most": "1MB", "private_hosts": [application.authority]}},
        "ceilings": {"cpus": 1, "memory": "%dMB" % (CEILING // 10**6), "time": "10min", "total": "30min"},
        "answer": {"model": "model.json"},
    }
    params = {
        "name": TEMPLATE,
        "command": "python train.py {epochs} {batch_mb}",
        "code": ["train.py"],
        "cluster": "local",
        "resources": {"cpus": 1, "memory": "%dMB" % (MEMORY // 10**6), "disk": "100MB", "time": "10min"},
        "outputs": ["model.json"],
        "checkpoints": {"grace": "1s"},
    }
    folder = root / "templates" / TEMPLATE
    folder.mkdir(parents=True)
    _write_yaml(root / "gateway.yaml", settings)
    _write_yaml(folder / "template.yaml", template)
    _write_yaml(folder / "params.yaml", params)
    _write_yaml(folder / "clusters.yaml", {"local": {"hosts": dict(hosts)}})
    (folder / "train.py").write_bytes(Path(line_training.__file__).read_bytes())
    (root / "credentials").mkdir(mode=0o700)
    _write_yaml(root / "credentials/broker.yaml", {"user": USER, "password": PASSWORD}, 0o600)
    login = {"username": USERNAME, "password": application.password}
    _write_yaml(root / "credentials/application.yaml", login, 0o600)


def _write_yaml(path: Path, content: Mapping[str, Any], mode: int = 0o644) -> None:
    # JSON is YAML, and needs no library.
    text = "".join("%s: %s\n" % (key, json.dumps(value)) for key, value in content.items())
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
